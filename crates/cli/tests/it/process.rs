//! A `baton` process in a group of its own. Whatever happens to the test, the group ends with it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::model::CACHE;

/// How often a condition is looked at again.
const LOOK: Duration = Duration::from_millis(5);

/// A process and what it has said.
pub struct Baton {
    child: Child,
    /// Standard error.
    pub log: Lines,
    /// Standard output.
    pub out: Lines,
}

/// The binary under test.
pub fn baton() -> Command {
    Command::new(env!("CARGO_BIN_EXE_baton"))
}

/// The lines of one of its outputs so far, each with its time. Whoever looks finds all that the
/// process had written by then: each look reads what stands in the pipe.
#[derive(Clone)]
pub struct Lines(Arc<(Mutex<Heard>, Condvar)>);

struct Heard {
    /// Reads what is there, and waits for nothing.
    pipe: File,
    /// A line whose end has not come.
    begun: Vec<u8>,
    lines: Vec<(Instant, String)>,
    ended: bool,
}

impl Baton {
    /// Starts the binary under test.
    pub fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        let mut command = baton();
        command.args(args);
        command.env("BATON_CACHE", &*CACHE);
        Self::spawn(command)
    }

    /// Starts any command under the same guard.
    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("NO_COLOR", "1").process_group(0);
        #[cfg(target_os = "linux")]
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            // The test's thread outlives the process, unless somebody kills the whole test.
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let log = Lines::of(child.stderr.take().unwrap());
        let out = Lines::of(child.stdout.take().unwrap());
        Self { child, log, out }
    }

    /// The process, which is also its group's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: i32) {
        send_signal(self.id() as i32, signal);
    }

    /// Sends a signal to the process and all it started, as a terminal does.
    pub fn signal_group(&self, signal: i32) {
        send_signal(-(self.id() as i32), signal);
    }

    /// Waits for its end.
    pub fn exit(&mut self, limit: Duration) -> ExitStatus {
        let child = &mut self.child;
        let status = wait_for(limit, || child.try_wait().unwrap());
        status.unwrap_or_else(|| {
            panic!("still running after {limit:?}\n{}\n{}", self.log.text(), self.out.text())
        })
    }

    /// Waits for its end, which must be a success that leaves nothing behind.
    pub fn ends_well(&mut self, limit: Duration) {
        let status = self.exit(limit);
        assert_eq!(status.code(), Some(0), "{status}\n{}", self.log.text());
        self.leaves_nothing(Duration::ZERO);
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Nothing of its group is left within `limit`.
    pub fn leaves_nothing(&self, limit: Duration) {
        let group = self.id();
        let empty = wait_for(limit, || members(group).is_empty().then_some(()));
        assert!(empty.is_some(), "left behind after {limit:?}: {:?}", members(group));
    }
}

impl Drop for Baton {
    fn drop(&mut self) {
        self.signal_group(libc::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process, or to a group where negative.
pub fn send_signal(to: i32, signal: i32) {
    assert!(!(-1..=1).contains(&to), "no process: {to}");
    // SAFETY: kill touches no memory; the target is a child of this test, or was started by one.
    unsafe { libc::kill(to, signal) };
}

/// Command lines of a process group's members; those that ended and were not waited for yet don't
/// count.
pub fn members(group: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|entry| member(&entry.path(), group)).collect()
}

fn member(process: &std::path::Path, group: u32) -> Option<String> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // The name in parentheses may hold anything.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let (state, _parent, its_group) = (fields.next()?, fields.next()?, fields.next()?);
    if state == "Z" || state == "X" || its_group.parse() != Ok(group) {
        return None;
    }
    let line = std::fs::read(process.join("cmdline")).ok()?;
    Some(format!("{state} {}", String::from_utf8_lossy(&line).replace('\0', " ")))
}

impl Heard {
    /// Takes what stands in the pipe.
    fn take(&mut self) {
        let mut bytes = [0; 4096];
        while !self.ended {
            match self.pipe.read(&mut bytes) {
                Ok(0) => self.ended = true,
                Ok(count) => self.begun.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("a process's output: {error}"),
            }
        }
        let whole = if self.ended {
            self.begun.len()
        } else {
            self.begun.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1)
        };
        let text: Vec<u8> = self.begun.drain(..whole).collect();
        let now = Instant::now();
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            self.lines.push((now, String::from_utf8_lossy(line).trim_end().to_owned()));
        }
    }
}

impl Lines {
    fn of(output: impl Into<OwnedFd>) -> Self {
        let pipe = File::from(output.into());
        let fd = pipe.as_raw_fd();
        // SAFETY: the descriptor is open; the flag is of this end alone.
        let set = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        let heard = Heard { pipe, begun: Vec::new(), lines: Vec::new(), ended: false };
        let lines = Self(Arc::new((Mutex::new(heard), Condvar::new())));
        let reader = lines.clone();
        std::thread::spawn(move || {
            while !reader.heard().ended {
                let mut waits = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry; the descriptor is open as long as this thread has its lines.
                unsafe { libc::poll(&mut waits, 1, -1) };
            }
        });
        lines
    }

    /// All so far; whoever waits for more looks again.
    fn heard(&self) -> MutexGuard<'_, Heard> {
        let mut heard = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.take();
        self.0.1.notify_all();
        heard
    }

    /// Lines so far.
    pub fn len(&self) -> usize {
        self.heard().lines.len()
    }

    /// All so far.
    pub fn text(&self) -> String {
        let heard = self.heard();
        let lines: Vec<&str> = heard.lines.iter().map(|(_, line)| line.as_str()).collect();
        lines.join("\n")
    }

    /// All, once the output has ended.
    pub fn to_end(&self, limit: Duration) -> String {
        let heard = self.heard();
        let waited = self.0.1.wait_timeout_while(heard, limit, |heard| {
            heard.take();
            !heard.ended
        });
        let waited = waited.unwrap();
        assert!(waited.0.ended, "the output goes on after {limit:?}");
        drop(waited);
        self.text()
    }

    /// The first line that holds `needle`, once there, and when it came.
    pub fn wait(&self, needle: &str, limit: Duration) -> (Instant, String) {
        self.wait_after(0, needle, limit)
    }

    /// As [`Lines::wait`], among the lines after the first `seen`.
    pub fn wait_after(&self, seen: usize, needle: &str, limit: Duration) -> (Instant, String) {
        let until = Instant::now() + limit;
        let mut heard = self.heard();
        loop {
            heard.take();
            let mut later = heard.lines.iter().skip(seen);
            if let Some(found) = later.find(|(_, line)| line.contains(needle)) {
                return found.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || heard.ended {
                let all: Vec<&str> = heard.lines.iter().map(|(_, line)| line.as_str()).collect();
                panic!("no {needle:?} within {limit:?} in:\n{}", all.join("\n"));
            }
            heard = self.0.1.wait_timeout(heard, left).unwrap().0;
        }
    }

    /// Lines after the first `seen` that hold `needle`.
    pub fn count_after(&self, seen: usize, needle: &str) -> usize {
        let heard = self.heard();
        let later = heard.lines.iter().skip(seen);
        later.filter(|(_, line)| line.contains(needle)).count()
    }

    /// The last line so far that holds `needle`.
    pub fn last(&self, needle: &str) -> Option<String> {
        let heard = self.heard();
        let mut lines = heard.lines.iter().rev().map(|(_, line)| line);
        lines.find(|line| line.contains(needle)).cloned()
    }
}

/// Asks again and again until there is something, at most for `limit`.
pub fn wait_for<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + limit;
    loop {
        if let Some(found) = ask() {
            return Some(found);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(LOOK);
    }
}

/// Seconds.
pub const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
