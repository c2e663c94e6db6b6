//! Answers heads that ask on the link who has an agent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use node::mdns::{self, GROUP, NAME_BYTES_MAX, PACKET_BYTES_MAX, PORT};
use socket2::{Domain, Protocol, Socket, Type};

/// Most answers in a second: anybody may ask.
const ANSWERS_MAX: u32 = 50;
/// How long the socket rests when the system refuses it a packet.
const REST: Duration = Duration::from_millis(100);

/// Answers on a thread of its own, as long as the process lives, on the interface of `address`.
///
/// # Errors
/// A name that is too long, an address of no IPv4 link, a port that is not shared.
pub fn announce(name: String, address: SocketAddr) -> Result<()> {
    let IpAddr::V4(ip) = address.ip() else {
        bail!("--announce: {address}: expected an IPv4 address; list the node in a file instead");
    };
    let bytes = name.len();
    ensure!(
        bytes <= NAME_BYTES_MAX,
        "--announce: --name of {bytes} bytes, expected at most {NAME_BYTES_MAX}"
    );
    let socket = listen(ip).with_context(|| format!("--announce: can't listen on port {PORT}"))?;
    let run = move || {
        let mut budget = Budget { since: Instant::now(), left: ANSWERS_MAX };
        loop {
            match asked(&socket) {
                Ok(Some((id, from))) if budget.takes() => {
                    // Who does not get it asks again.
                    let _ = socket.send_to(&mdns::answer(id, &name, address), from);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!("--announce: {error}");
                    std::thread::sleep(REST);
                }
            }
        }
    };
    std::thread::Builder::new().name("baton-announce".into()).spawn(run)?;
    Ok(())
}

fn listen(ip: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    // The system's own responder has the port too.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)).into())?;
    socket.join_multicast_v4(&GROUP, &ip)?;
    Ok(socket.into())
}

/// The next packet: number and sender where it asks for agents.
fn asked(socket: &UdpSocket) -> io::Result<Option<(u16, SocketAddr)>> {
    let mut packet = [0; PACKET_BYTES_MAX];
    let (bytes, from) = socket.recv_from(&mut packet)?;
    Ok(mdns::asks(&packet[..bytes]).map(|id| (id, from)))
}

/// So many answers a second.
struct Budget {
    since: Instant,
    left: u32,
}

impl Budget {
    fn takes(&mut self) -> bool {
        if self.since.elapsed() >= Duration::from_secs(1) {
            *self = Self { since: Instant::now(), left: ANSWERS_MAX };
        }
        let has = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has
    }
}
