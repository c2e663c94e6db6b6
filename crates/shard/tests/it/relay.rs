//! A way between two members that can be stopped: bytes stay where they are, connections stay open.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub struct Relay {
    pub address: SocketAddr,
    stalled: Arc<AtomicBool>,
}

impl Relay {
    /// Listens on loopback, and passes on to `to`.
    pub fn to(to: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let stalled = Arc::new(AtomicBool::new(false));
        let stall = stalled.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Ok(onward) = TcpStream::connect(&to) else { continue };
                for (from, to) in [(&stream, &onward), (&onward, &stream)] {
                    let ends = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let stall = stall.clone();
                    std::thread::spawn(move || pass(ends, &stall));
                }
            }
        });
        Self { address, stalled }
    }

    pub fn stall(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::SeqCst);
    }
}

fn pass((mut from, mut to): (TcpStream, TcpStream), stalled: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}
