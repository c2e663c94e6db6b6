//! How the compute side is called while it waits at its socket.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

/// A bell that is heard beside a socket. Who posts something rings it, and who waits looks for
/// posts once more after it has begun to listen: each has a fence between its two steps, so one of
/// the two sees the other.
#[derive(Debug)]
pub(crate) struct Bell {
    listens: AtomicBool,
    near: UnixStream,
    far: UnixStream,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The bell, the socket, or both; or a signal.
    Something,
    /// The deadline has passed.
    Nothing,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        Ok(Self { listens: AtomicBool::new(false), near, far })
    }

    /// Calls whoever listens; costs a fence where nobody does.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.listens.load(Ordering::Relaxed) && self.listens.swap(false, Ordering::Relaxed) {
            // A full pipe has rung already.
            let _ = (&self.far).write(&[1]);
        }
    }

    /// Listens from now on; what was posted before is looked for after this.
    pub(crate) fn listen(&self) {
        self.listens.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Listens no more.
    pub(crate) fn rest(&self) {
        self.listens.store(false, Ordering::Relaxed);
    }

    /// Waits until it rings, `socket` has bytes or has ended, or `deadline`.
    pub(crate) fn wait(&self, socket: Option<RawFd>, deadline: Option<Instant>) -> Heard {
        let watched = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A negative descriptor is passed over.
        let mut fds = [watched(self.near.as_raw_fd()), watched(socket.unwrap_or(-1))];
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let found = poll(&mut fds, left);
        if found == 0 {
            return Heard::Nothing;
        }
        if fds[0].revents != 0 {
            let _ = (&self.near).read(&mut [0; 16]);
        }
        Heard::Something
    }
}

/// How many of `fds` have something, at most `left` from now.
#[cfg(target_os = "linux")]
fn poll(fds: &mut [libc::pollfd; 2], left: Option<Duration>) -> libc::c_int {
    let left = left.map(|left| libc::timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    let timeout = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: two records and, unless it is null, a time, which all live through the call.
    unsafe { libc::ppoll(fds.as_mut_ptr(), 2, timeout, std::ptr::null()) }
}

/// The same, up to the next millisecond.
#[cfg(not(target_os = "linux"))]
fn poll(fds: &mut [libc::pollfd; 2], left: Option<Duration>) -> libc::c_int {
    let millis = |left: Duration| left.as_nanos().div_ceil(1_000_000).try_into();
    let timeout = left.map_or(-1, |left| millis(left).unwrap_or(libc::c_int::MAX));
    // SAFETY: two records that live through the call.
    unsafe { libc::poll(fds.as_mut_ptr(), 2, timeout) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Without the look after `listen`, or without a ring after a post, a wait here never ends.
    #[test]
    fn no_post_is_slept_over() {
        let (bell, again) = (Bell::new().unwrap(), Bell::new().unwrap());
        let (posts, items) = channel();
        let (answers, answered) = channel();
        let wait = |bell: &Bell, look: &dyn Fn() -> bool| {
            loop {
                bell.listen();
                if look() {
                    return bell.rest();
                }
                let deadline = Instant::now() + Duration::from_secs(20);
                assert_eq!(bell.wait(None, Some(deadline)), Heard::Something, "slept over");
            }
        };
        std::thread::scope(|scope| {
            let (bell, again) = (&bell, &again);
            scope.spawn(move || {
                for _ in 0..20_000 {
                    wait(bell, &|| items.try_recv().is_ok());
                    answers.send(()).unwrap();
                    again.ring();
                }
            });
            for _ in 0..20_000 {
                posts.send(()).unwrap();
                bell.ring();
                wait(again, &|| answered.try_recv().is_ok());
            }
        });
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_one_that_nobody_listens_to_costs_no_call() {
        let bell = Bell::new().unwrap();
        bell.ring();
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(bell.wait(None, Some(soon)), Heard::Nothing);
        assert!(Instant::now() >= soon);
        bell.listen();
        bell.ring();
        assert_eq!(bell.wait(None, None), Heard::Something);
    }
}
