//! What a service manager is told (systemd's sd_notify): a datagram to the socket that it names.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// Where the manager listens.
const SOCKET: &str = "NOTIFY_SOCKET";
/// Microseconds within which it wants a sign of life, and whose.
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHDOG_PID: &str = "WATCHDOG_PID";
/// How often what there is to tell is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Signs of life in the time that the manager waits for one.
const SIGNS: u32 = 3;

/// A way to the manager; does nothing where there is none.
#[derive(Debug)]
pub struct Manager {
    socket: Option<UnixDatagram>,
    /// How often it wants a sign of life.
    every: Option<Duration>,
}

impl Manager {
    /// The one that started this process, if any.
    pub fn of_this_process() -> Self {
        let name = env::var_os(SOCKET);
        let socket = name.and_then(|name| match connect(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!("{SOCKET} {}: {error}; told nothing", name.display());
                None
            }
        });
        let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let ours = number(WATCHDOG_PID).is_none_or(|pid| pid == u64::from(std::process::id()));
        let within = number(WATCHDOG).filter(|us| *us > 0 && ours && socket.is_some());
        Self { socket, every: within.map(|us| Duration::from_micros(us) / SIGNS) }
    }

    /// How long to wait before it is told again; `None` where there is none to tell.
    pub fn pause(&self) -> Option<Duration> {
        self.socket.as_ref().map(|_| self.every.unwrap_or(LOOK).min(LOOK))
    }

    /// Up, and what it does in one line.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// What it does, in one line.
    pub fn status(&self, status: &str) {
        self.tell(&format!("STATUS={status}"));
    }

    /// A sign of life.
    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// The end has begun.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=running replies may finish");
    }

    fn tell(&self, text: &str) {
        if let Some(socket) = &self.socket {
            // A manager that does not listen any more is no reason to end.
            let _ = socket.send(text.as_bytes());
        }
    }
}

/// A path, or an abstract name after an `@`.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match name.as_encoded_bytes().strip_prefix(b"@") {
        #[cfg(target_os = "linux")]
        Some(rest) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(rest)?;
            socket.connect_addr(&address)?;
        }
        _ => socket.connect(name)?,
    }
    Ok(socket)
}
