//! Connections: how many, how long they may idle, and how they close.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::unstalled::Unstalled;
use super::{ServeError, Shared, closed, routes};

/// Pause after a failed accept: descriptors run out, and come back when connections close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Failed accepts in a row after which the listener counts as broken.
const ACCEPT_FAILURES_MAX: u32 = 1_000;

/// The listener and the connections that came through it.
pub(super) struct Door {
    listener: TcpListener,
    router: Router,
    shared: Arc<Shared>,
    permits: Arc<Semaphore>,
    connections: JoinSet<()>,
}

impl Door {
    pub(super) fn new(listener: TcpListener, shared: Arc<Shared>) -> Self {
        Self {
            listener,
            router: routes::router(shared.clone()),
            permits: Arc::new(Semaphore::new(shared.app.limits.connections_max)),
            shared,
            connections: JoinSet::new(),
        }
    }

    /// Takes connections until `until` completes.
    pub(super) async fn admit_until(
        &mut self,
        until: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let mut until = pin!(until);
        loop {
            tokio::select! {
                biased;
                () = until.as_mut() => return Ok(()),
                Some(_) = self.connections.join_next() => {}
                admitted = admit(&self.listener, &self.permits) => {
                    let (stream, permit) = admitted?;
                    let conversation = converse(stream, self.router.clone(), self.shared.clone());
                    self.connections.spawn(async move {
                        conversation.await;
                        drop(permit);
                    });
                }
            }
        }
    }

    /// Stops listening and waits for the connections; cuts those that take longer.
    pub(super) async fn close(mut self, timeout: Duration) {
        drop(self.listener);
        let all = async { while self.connections.join_next().await.is_some() {} };
        if tokio::time::timeout(timeout, all).await.is_err() {
            self.connections.shutdown().await;
        }
    }
}

/// The next connection, once there is room for it.
async fn admit(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Result<(TcpStream, OwnedSemaphorePermit), ServeError> {
    let closed = |e| ServeError::Listener(std::io::Error::other(e));
    let permit = permits.clone().acquire_owned().await.map_err(closed)?;
    let mut failures = 0;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Ok((stream, permit)),
            Err(e) if is_of_one_connection(e.kind()) => {}
            Err(e) if failures >= ACCEPT_FAILURES_MAX => return Err(ServeError::Listener(e)),
            Err(e) => {
                failures += 1;
                tracing::warn!("no connection taken: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    )
}

/// One connection's requests, in turn. A client that leaves ends it, and drops its reply.
async fn converse(stream: TcpStream, router: Router, shared: Arc<Shared>) {
    let limits = &shared.app.limits;
    // Tokens are small and far apart: each leaves at once.
    let _ = stream.set_nodelay(true);
    let stream = Unstalled::new(stream, limits.stall_timeout());
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout())
        .max_buf_size(limits.connection_buffer_bytes_max)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let mut closing = shared.closing.subscribe();
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closed(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!("a connection ended early: {e}");
    }
}
