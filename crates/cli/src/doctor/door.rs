//! The way to the next rank, and what it says at its door.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use arith::base::Rank;
use ring::address::{self, is_loopback};
use ring::link::LinkError;
use ring::tcp::probe::probe;

use super::Findings;
use super::own::{KEY, ZONE, is_link_local};
use crate::model::Model;
use crate::rank::Place;

/// One attempt to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// Connections whose times are measured.
const TIMES: usize = 20;

/// The way to the next rank.
pub struct Way<'a> {
    /// Where it should listen.
    pub next: &'a str,
    /// Which it is.
    pub rank: Rank,
    /// Whether the ring has a key, however unfit.
    pub has_key: bool,
}

/// Whether the rank after is where it should be and would let this one in.
pub fn reaches(way: &Way<'_>, place: &Place, model: Option<&Model>, findings: &mut Findings) {
    let Way { next, rank, has_key } = *way;
    let check = format!("next {next}");
    let named = Named { check: &check, who: &format!("rank {rank}"), flag: "--next" };
    let Some(sockets) = named.resolve(next, findings) else { return };
    if let Some(own) = sockets.iter().find(|socket| place.listen.contains(socket)) {
        let advice = format!("--next is the address of rank {rank}");
        return findings.fail(&check, format!("{own} is this rank's own address"), advice);
    }
    if !has_key && !sockets.iter().all(|&socket| is_loopback(socket)) {
        return findings.fail(&check, "KeylessAddress: off this machine, and no key", KEY);
    }
    let Some((socket, stream)) = named.connect(&sockets, findings) else { return };
    let Some(model) = model else {
        let advice = "mend what failed above first";
        return findings.fail("handshake", "not tried without key and model", advice);
    };
    match place.config(model).and_then(|config| Ok(probe(config, stream)?)) {
        Ok(()) => {
            findings.ok("preamble", "a rank of this version");
            findings.ok("secret", "the same on both");
            findings.ok("neighbour", format!("rank {rank} takes rank {}", place.rank));
            findings.ok("fingerprint", "the same on both: model, layout and settings");
        }
        Err(error) => match error.downcast_ref::<LinkError>() {
            Some(error) => refused(error, rank, place.rank, findings),
            None => findings.fail("handshake", format!("{error:#}"), "see the message"),
        },
    }
    if let Some(median) = round_trip(socket) {
        let ms = median.as_secs_f64() * 1e3;
        findings.ok("rtt", format!("{ms:.2} ms, the median of {TIMES} connections"));
    }
}

/// Somebody whose address this machine was told.
pub struct Named<'a> {
    /// What its lines begin with.
    pub check: &'a str,
    /// `rank 1`, `member 0`.
    pub who: &'a str,
    /// Where its address was given.
    pub flag: &'a str,
}

impl Named<'_> {
    /// The addresses of `host:port`; else says what is wrong with it.
    pub fn resolve(&self, address: &str, findings: &mut Findings) -> Option<Vec<SocketAddr>> {
        let Self { check, flag, .. } = self;
        let advice = format!("correct {flag}, or give the machine's address instead of its name");
        let said = |error: &_| {
            findings.fail(check, format!("its name does not resolve: {error}"), advice);
        };
        address::resolve(address).inspect_err(said).ok()
    }

    /// The first address that takes a connection; else says what is wrong with the last.
    pub fn connect(
        &self,
        sockets: &[SocketAddr],
        findings: &mut Findings,
    ) -> Option<(SocketAddr, TcpStream)> {
        let Self { check, who, flag } = self;
        let mut failed = None;
        for socket in sockets {
            match TcpStream::connect_timeout(socket, CONNECT) {
                Ok(stream) => {
                    findings.ok(check, "reached");
                    return Some((*socket, stream));
                }
                Err(error) => failed = Some((socket, error)),
            }
        }
        let Some((socket, error)) = failed else {
            findings.fail(check, "the name has no address", format!("correct {flag}"));
            return None;
        };
        let port = socket.port();
        match error.kind() {
            ErrorKind::ConnectionRefused => findings.fail(
                check,
                "refused: the machine is there, but nothing listens on the port",
                format!("start {who} there, or correct the port in {flag}"),
            ),
            ErrorKind::TimedOut | ErrorKind::WouldBlock => findings.fail(
                check,
                format!("no answer within {} s", CONNECT.as_secs()),
                format!(
                    "is the address right and the machine up? its firewall must let TCP port \
                     {port} in"
                ),
            ),
            ErrorKind::InvalidInput if is_link_local(socket.ip()) => {
                findings.fail(check, "a link-local address without its interface", ZONE);
            }
            _ => findings.fail(
                check,
                format!("no way there: {error}"),
                "is the address right, and both machines in one network?",
            ),
        }
        None
    }
}

/// The checks in the order in which a handshake makes them, up to the one that failed.
fn refused(error: &LinkError, rank: Rank, own: Rank, findings: &mut Findings) {
    const ORDER: [&str; 4] = ["preamble", "secret", "neighbour", "fingerprint"];
    let code = error.code();
    let (at, advice) = match code {
        "LinkClosed" | "Unreachable" | "BadMagic" => {
            (0, format!("something else than rank {rank} has that port, or it hangs: look there"))
        }
        "OtherVersion" | "OtherCipher" => (0, "install the same baton on both machines".into()),
        "BadSecret" => {
            (1, "copy the key file again: `sha256sum` must say the same on both machines".into())
        }
        "OtherWorld" => (2, "give both ranks the same --layout".into()),
        "NotNeighbour" => {
            (2, format!("--next of rank {own} is where rank {rank} listens; check --rank on both"))
        }
        "OtherEncryption" => (2, "encrypt on both machines or on neither".into()),
        "OtherFingerprint" => (3, differs(error)),
        _ => (0, "see the message".into()),
    };
    for passed in &ORDER[..at] {
        findings.ok(passed, "the same on both");
    }
    findings.fail(ORDER[at], error, advice);
}

/// What to do about the first field that differs.
fn differs(error: &LinkError) -> String {
    match error {
        LinkError::Wire(error) => field_advice(&error.fault().field),
        _ => field_advice(""),
    }
}

/// What to do about a field that differs.
pub fn field_advice(field: &str) -> String {
    match field {
        "layout" => "give both ranks the same --layout".into(),
        "kv" => "give both ranks the same --kv".into(),
        "arith" => "give both ranks the same --arith".into(),
        "protocol" | "engine" => "install the same baton on both machines".into(),
        field if ["tensor.", "config.", "contents."].iter().any(|of| field.starts_with(of)) => {
            "copy the same model file to both machines: `sha256sum` must say the same".into()
        }
        "shapes.context" => "give both the same --context".into(),
        "shapes.streams" => "give both the same --streams".into(),
        "shapes.chunk" => "give both the same --chunk".into(),
        "shapes.pages" => "give both the same --context, --streams and --prompt-cache-gib".into(),
        _ => "usually the model file, --layout, --kv or the version of baton".into(),
    }
}

/// The median time to connect, which is one round trip.
fn round_trip(socket: SocketAddr) -> Option<Duration> {
    let mut times = Vec::with_capacity(TIMES);
    for _ in 0..TIMES {
        let since = Instant::now();
        TcpStream::connect_timeout(&socket, CONNECT).ok()?;
        times.push(since.elapsed());
    }
    times.sort();
    times.get(TIMES / 2).copied()
}
