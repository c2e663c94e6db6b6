//! The server over real sockets, before a ring that is a script.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(missing_docs, reason = "tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use baton_api::{App, Limits, serve};
use sched::RequestId;
use text::Text;
use tokio::sync::oneshot;

mod client;
mod connections;
mod dialects;
mod drain;
mod errors;
mod fake;
mod guarded;
mod limits;
mod openai;
mod replies;
mod streams;
mod surface;
mod vitals;

use fake::{Fake, Seen};

/// A server on a port of its own; stops when dropped.
pub struct Server {
    pub addr: SocketAddr,
    pub fake: Fake,
    shutdown: Option<oneshot::Sender<()>>,
    hurry: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start() -> Self {
        Self::within(Limits::default())
    }

    pub fn within(limits: Limits) -> Self {
        Self::configured(|app| app.limits = limits)
    }

    pub fn speaking(text: Text) -> Self {
        Self::configured(|app| app.text = Arc::new(text))
    }

    pub fn configured(configure: impl FnOnce(&mut App)) -> Self {
        let fake = Fake::start();
        let text = Arc::new(Text::byte_level());
        let mut app = App::new(fake.handle.clone(), text, "org/fake");
        configure(&mut app);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let (shutdown, asked) = oneshot::channel();
        let (hurry, pressed) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let asked = async {
                    let _ = asked.await;
                };
                let pressed = async {
                    // Dropped without a word: nobody is in a hurry.
                    if pressed.await.is_err() {
                        std::future::pending().await
                    }
                };
                serve(listener, app, asked, pressed).await.unwrap();
            });
        });
        Self { addr, fake, shutdown: Some(shutdown), hurry: Some(hurry), thread: Some(thread) }
    }

    /// Asks for the shutdown; the server drains.
    pub fn shut_down(&mut self) {
        drop(self.shutdown.take());
    }

    /// Ends what still runs.
    pub fn hurry(&mut self) {
        self.hurry.take().unwrap().send(()).unwrap();
    }

    /// Waits until `serve` has returned.
    pub fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// What the engine got, first request first.
    pub fn submitted(&self) -> Vec<sched::Request> {
        let log = self.fake.log.lock().unwrap();
        let submitted = log.iter().filter_map(|seen| match seen {
            Seen::Submitted(_, request) => Some((**request).clone()),
            _ => None,
        });
        submitted.collect()
    }

    /// Waits until a request's owner has gone; the tokens it was sent.
    pub fn wait_for_cancel(&self, within: Duration) -> (RequestId, u32) {
        let start = Instant::now();
        loop {
            let log = self.fake.log.lock().unwrap().clone();
            let cancelled = log.into_iter().find_map(|seen| match seen {
                Seen::Cancelled(id, sent) => Some((id, sent)),
                _ => None,
            });
            if let Some(cancelled) = cancelled {
                return cancelled;
            }
            assert!(start.elapsed() < within, "no cancel within {within:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn wait_for_submit(&self) {
        let start = Instant::now();
        while self.submitted().is_empty() {
            assert!(start.elapsed() < client::PATIENCE, "no request came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down();
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(joined.is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}
