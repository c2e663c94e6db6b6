//! Which side of a rank is woken by bytes of the rank before.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket behind a switch: while it is on, whoever watches the switch is woken by its bytes;
/// while it is off nobody is, until the socket's end. The I/O thread watches, and the compute side
/// has it off while it waits at the socket by itself, so that one frame wakes one thread.
#[derive(Debug)]
pub(super) struct Switch {
    socket: Arc<TcpStream>,
    #[cfg(target_os = "linux")]
    epoll: std::os::fd::OwnedFd,
}

#[cfg(target_os = "linux")]
impl Switch {
    /// On.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(socket: Arc<TcpStream>) -> io::Result<Self> {
        use std::os::fd::{FromRawFd, OwnedFd};
        // SAFETY: no memory is handed over.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let switch = Self { socket, epoll };
        switch.control(libc::EPOLL_CTL_ADD, true)?;
        Ok(switch)
    }

    /// Turns it on or off; bytes that wait already wake the watcher at once.
    pub(super) fn turn(&self, on: bool) {
        // It fails for a socket that is not in the set, and this one is until both are dropped.
        let _ = self.control(libc::EPOLL_CTL_MOD, on);
    }

    /// Forgets what woke the watcher: bytes that come from now on wake it again.
    pub(super) fn forget(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event, which lives through the call.
        unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, 0) };
    }

    fn control(&self, what: libc::c_int, on: bool) -> io::Result<()> {
        // Edges only: `forget` would otherwise leave the event where it is.
        let events = if on { libc::EPOLLIN | libc::EPOLLET } else { libc::EPOLLET };
        let mut event = libc::epoll_event { events: events as u32, u64: 0 };
        let (epoll, socket) = (self.epoll.as_raw_fd(), self.socket.as_raw_fd());
        // SAFETY: the event lives through the call.
        let failed = unsafe { libc::epoll_ctl(epoll, what, socket, &raw mut event) } < 0;
        if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(not(target_os = "linux"))]
impl Switch {
    pub(super) fn new(socket: Arc<TcpStream>) -> io::Result<Self> {
        Ok(Self { socket })
    }

    /// Always on here: a frame may wake both sides, and the one that is later finds nothing.
    pub(super) fn turn(&self, _on: bool) {}

    pub(super) fn forget(&self) {}
}

impl AsRawFd for Switch {
    #[cfg(target_os = "linux")]
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
    #[cfg(not(target_os = "linux"))]
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Switch {
    /// What the I/O thread waits at.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn watch(self: &Arc<Self>) -> io::Result<AsyncFd<Arc<Self>>> {
        // SAFETY: the descriptor is the switch's own, which the watcher keeps alive.
        let watched = unsafe { AsyncFd::register_with_interest(self.clone(), Interest::READABLE) };
        Ok(watched?)
    }

    /// The socket, for whoever waits at it.
    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }
}
