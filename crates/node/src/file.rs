//! The file that says which nodes there are.

use std::fs;
use std::path::{Path, PathBuf};

use ring::address;
use serde::Deserialize;

use crate::{NODES_MAX, NodeError};

/// Most bytes of the file.
pub const FILE_BYTES_MAX: u64 = 64 << 10;

/// One machine with an agent.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// What it is called here; unique.
    pub name: String,
    /// Where its agent listens, `HOST:PORT`.
    pub address: String,
    /// Its key, where it is not everybody's.
    pub key: Option<PathBuf>,
    /// What it computes on, where its agent's own choice is not meant.
    pub device: Option<String>,
    /// Compute threads, where its agent's own choice is not meant.
    pub threads: Option<usize>,
    /// Most memory of a rank there, in GiB.
    pub memory_limit: Option<f64>,
}

/// The machine that serves.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Serving {
    /// What it is called; its host name where nothing is said.
    pub name: Option<String>,
    /// Where rank 0 listens for the last rank, `ADDR:PORT`; a free port of the address that the
    /// last rank's node is reached from where nothing is said.
    pub listen: Option<String>,
    /// Most memory of rank 0, in GiB.
    pub memory_limit: Option<f64>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// Everybody's key.
    pub key: Option<PathBuf>,
    /// The machine that serves.
    #[serde(default)]
    pub head: Serving,
    /// Links that are not as usual: a round trip and a rate, of all or of a pair.
    #[serde(default)]
    pub links: Vec<String>,
    /// The machines beside the head's.
    #[serde(default, rename = "node")]
    pub nodes: Vec<Listed>,
}

impl Nodes {
    /// Reads the file.
    ///
    /// # Errors
    /// What can't be read, names that are not unique, addresses of another form, more nodes than
    /// [`NODES_MAX`].
    pub fn read(path: &Path) -> Result<Self, NodeError> {
        let bad = |reason: String| NodeError::File { path: path.into(), reason };
        let bytes = fs::metadata(path).map_err(|error| bad(error.to_string()))?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(bad(format!("{bytes} bytes, expected at most {FILE_BYTES_MAX}")));
        }
        let text = fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
        Self::parse(&text).map_err(bad)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let nodes: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if nodes.nodes.is_empty() || nodes.nodes.len() > NODES_MAX {
            let found = nodes.nodes.len();
            return Err(format!("expected 1 to {NODES_MAX} of [[node]], found {found}"));
        }
        let head = nodes.head.name.iter().map(String::as_str);
        let mut names: Vec<&str> = nodes.nodes.iter().map(|node| &*node.name).chain(head).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("{}: expected one node of a name, found two", pair[0]));
        }
        for node in &nodes.nodes {
            let Listed { name, address, .. } = node;
            address::split(address).map_err(|error| format!("{name}: {address}: {error}"))?;
            if name.is_empty() || name.contains([':', ',', '=']) {
                return Err(format!("{name:?}: expected a name without : , and ="));
            }
        }
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const THREE: &str = r#"
        key = "ring.key"
        [[node]]
        name = "b"
        address = "10.0.0.2:7500"
        threads = 2
        [[node]]
        name = "c"
        address = "box.lan:7500"
        device = "cuda:0"
        memory_limit = 20.5
    "#;

    #[test]
    fn nodes_are_read_and_what_is_wrong_is_named() {
        let nodes = Nodes::parse(THREE).unwrap();
        assert_eq!(nodes.nodes.len(), 2);
        assert_eq!((nodes.nodes[0].threads, nodes.nodes[1].memory_limit), (Some(2), Some(20.5)));
        let twice = THREE.replace("\"c\"", "\"b\"");
        let many: String = (0..=NODES_MAX)
            .map(|at| format!("[[node]]\nname = \"{at}\"\naddress = \"a:1\"\n"))
            .collect();
        for (text, expected) in [
            (twice.as_str(), "b: expected one node of a name"),
            (&THREE.replace("box.lan:7500", "box.lan"), "c: box.lan: expected host:port"),
            (&THREE.replace("threads", "thread"), "unknown field `thread`"),
            (&THREE.replace("\"b\"", "\"b:1\""), "without : , and ="),
            ("", "expected 1 to 7"),
            (&many, "found 8"),
        ] {
            let error = Nodes::parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
