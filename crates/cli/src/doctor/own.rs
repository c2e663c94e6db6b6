//! This machine's addresses and ports.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use ring::address::is_loopback;
use wire::preamble::{self, Cipher};

use super::Findings;

/// How long whoever has the port may take to say who it is; a rank says it at once.
const ANSWER: Duration = Duration::from_secs(1);

/// Whether a rank can listen at `address`, or does.
pub fn listens(address: SocketAddr, has_key: bool, findings: &mut Findings) {
    let check = format!("listen {address}");
    if address.ip().to_canonical().is_unspecified() {
        let found = "WildcardListen: a rank listens on one address, not on all";
        return findings.fail(&check, found, format!("--listen one of {}", here()));
    }
    if !has_key && !is_loopback(address) {
        let found = "KeylessAddress: without a key only loopback is allowed";
        return findings.fail(&check, found, KEY);
    }
    let error = match TcpListener::bind(address) {
        Ok(_) => return findings.ok(&check, "this machine's, and free"),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::AddrInUse if is_rank(address) => {
            findings.ok(&check, "this machine's, and a rank listens there");
        }
        ErrorKind::AddrInUse => findings.fail(
            &check,
            "in use by another program",
            "choose another port, here and in --next of the rank before",
        ),
        ErrorKind::AddrNotAvailable => findings.fail(
            &check,
            "not an address of this machine",
            format!("--listen one of {}", here()),
        ),
        ErrorKind::PermissionDenied => findings.fail(&check, &error, "choose a port above 1023"),
        ErrorKind::InvalidInput if is_link_local(address.ip()) => {
            findings.fail(&check, "a link-local address without its interface", ZONE);
        }
        _ => findings.fail(&check, &error, format!("--listen one of {}", here())),
    }
}

/// What to do without a key.
pub const KEY: &str =
    "`baton key new ring.key`, copy it to every machine, and --key ring.key on each";
/// What to do without a zone.
pub const ZONE: &str = "name the interface, as in [fe80::1%eth0]:7400";

/// Whether an address means nothing without an interface.
pub fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80)
}

fn is_rank(address: SocketAddr) -> bool {
    let hear = || -> std::io::Result<[u8; preamble::PREAMBLE_BYTES]> {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut said = [0; preamble::PREAMBLE_BYTES];
        stream.read_exact(&mut said)?;
        Ok(said)
    };
    hear().is_ok_and(|said| preamble::check(Cipher::ChaChaPoly, &said).is_ok())
}

/// This machine's addresses, other machines' first choice first.
fn here() -> String {
    let v4 = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let v6 = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut all = addresses_v4(&v4);
    all.extend(addresses_v6(&v6));
    if all.is_empty() {
        return "this machine's addresses".into();
    }
    all.join(", ")
}

/// Of the kernel's table of routes: each leaf that is this host itself.
fn addresses_v4(table: &str) -> Vec<String> {
    let mut found: Vec<Ipv4Addr> = Vec::new();
    let mut leaf = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(leaf.filter(|ip| !found.contains(ip)));
        }
    }
    found.sort_by_key(Ipv4Addr::is_loopback);
    found.iter().map(ToString::to_string).collect()
}

/// Of the kernel's list of addresses: 32 digits first, the interface last.
fn addresses_v6(list: &str) -> Vec<String> {
    let one = |line: &str| {
        let mut fields = line.split_whitespace();
        let ip = Ipv6Addr::from(u128::from_str_radix(fields.next()?, 16).ok()?);
        let zone =
            if is_link_local(ip.into()) { format!("%{}", fields.last()?) } else { String::new() };
        Some((ip.is_loopback(), format!("[{ip}{zone}]")))
    };
    let mut found: Vec<_> = list.lines().filter_map(one).collect();
    found.sort();
    found.into_iter().map(|(_, address)| address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_named_with_loopback_last() {
        let table = "Main:\n  +-- 127.0.0.0/31 1 0 0\n     |-- 127.0.0.1\n        /32 host LOCAL\n\
                     |-- 192.0.2.0\n   /24 link UNICAST\n  |-- 192.0.2.2\n  /32 host LOCAL\n\
                     Local:\n  |-- 192.0.2.2\n  /32 host LOCAL\n";
        assert_eq!(addresses_v4(table), ["192.0.2.2", "127.0.0.1"]);
        let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fd000000000000000000000000000002 04 40 00 82     eth0\n\
                    fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n";
        let all = addresses_v6(list);
        assert_eq!(all, ["[fd00::2]", "[fe80::fc:ff:fe00:1%eth0]", "[::1]"]);
    }
}
