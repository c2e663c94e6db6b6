//! Ways between a node's rank and others, while no rank has its port.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use node::message::{Door, Reach};
use ring::key::Key;
use ring::tcp::Transport;
use serde_json::Value;
use wire::hello::Encryption;

use super::child::Starter;
use crate::probe::links;

/// How long a port that is about to open is waited for.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The rank's port, for who measures the way to it.
pub struct Ways {
    listen: Vec<SocketAddr>,
    door: Option<Transport>,
}

impl Ways {
    /// Closed.
    pub fn of(starter: &Starter) -> Self {
        Self { listen: starter.listen.clone(), door: None }
    }

    /// Opens it for who has the door's secret, and for nobody else any more.
    ///
    /// # Errors
    /// No secret, or a port that somebody else has.
    pub fn open(&mut self, door: &Door) -> Result<()> {
        self.shut();
        let (key, encryption) = keyed(door)?;
        self.door = Some(links::door(self.listen.clone(), Some(key), encryption)?);
        Ok(())
    }

    /// Closes it.
    pub fn shut(&mut self) {
        self.door = None;
    }
}

/// The secret that opens a door, and whether its records are enciphered.
fn keyed(door: &Door) -> Result<(Key, Encryption)> {
    let secret = door.secret.bytes().context("the head gave no secret to measure with")?;
    let encryption = if door.encrypts { Encryption::On } else { Encryption::Off };
    Ok((Key::from_bytes(&secret)?, encryption))
}

/// The ways from the machine `name` to another's rank.
///
/// # Errors
/// Why nothing came through.
pub fn reached(name: &str, reach: &Reach) -> Result<Value, String> {
    let (key, encryption) = keyed(&reach.door).map_err(|error| crate::line(&error))?;
    let again = reach.again;
    let how = links::Reach { name, key: Some(&key), encryption, again, patience: PATIENCE };
    let paths = links::reached(&how, &reach.node, &reach.addresses)?;
    serde_json::to_value(paths).map_err(|error| error.to_string())
}
