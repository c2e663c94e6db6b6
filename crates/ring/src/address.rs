//! Addresses of ranks and members as users write them.

use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, ToSocketAddrs};

use crate::key::Key;
use crate::link::LinkError;

/// Host and port of `host:port` or `[v6%zone]:port`.
///
/// # Errors
/// Anything else.
pub fn split(address: &str) -> Result<(&str, u16)> {
    let bad = || Error::new(ErrorKind::InvalidInput, "expected host:port or [address]:port");
    let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
    let port = port.parse().map_err(|_| bad())?;
    // A zone's name, as in [fe80::1%eth0], is for the resolver.
    Ok((host.trim_start_matches('[').trim_end_matches(']'), port))
}

/// What it resolves to; may take the resolver's time.
///
/// # Errors
/// No such form, or no such name.
pub fn resolve(address: &str) -> Result<Vec<SocketAddr>> {
    match address.parse() {
        Ok(socket) => Ok(vec![socket]),
        Err(_) => Ok(split(address)?.to_socket_addrs()?.collect()),
    }
}

/// Whether it stays on this machine.
pub fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Without a key, refuses any address off this machine.
///
/// # Errors
/// `KeylessAddress`.
pub fn check_key(key: Option<&Key>, address: SocketAddr) -> std::result::Result<(), LinkError> {
    let keyed = key.is_some_and(|key| !key.is_loopback());
    if keyed || is_loopback(address) {
        return Ok(());
    }
    Err(LinkError::KeylessAddress { address: address.to_string() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn hosts_have_names_addresses_and_zones() {
        assert_eq!(split("box.lan:7400").unwrap(), ("box.lan", 7400));
        assert_eq!(split("[fe80::1%eth0]:1").unwrap(), ("fe80::1%eth0", 1));
        assert_eq!(resolve("10.0.0.1:7").unwrap(), ["10.0.0.1:7".parse().unwrap()]);
        for bad in ["box", "box:", "box:x", "box:70000"] {
            assert!(split(bad).is_err(), "{bad}");
        }
        let off = "10.0.0.1:7".parse().unwrap();
        assert!(check_key(None, off).is_err() && check_key(Some(&Key::loopback()), off).is_err());
        assert!(check_key(None, "[::ffff:127.0.0.1]:7".parse().unwrap()).is_ok());
    }
}
