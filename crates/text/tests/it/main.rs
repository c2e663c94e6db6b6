//! Text to tokens and back, against what other implementations gave.
#![allow(clippy::unwrap_used, reason = "tests")]

extern crate baton_text as text;

mod folder;
mod refusals;
mod reply;
mod smollm2;
mod template;
mod tokenizer;

use serde_json::Value;
use weights::gguf::write::Writer;
use weights::gguf::{Header, Metadata};

/// A golden file as JSON.
fn golden(name: &str) -> Value {
    let path = format!("{}/../../golden/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The metadata that `fill` writes.
fn metadata(fill: impl FnOnce(&mut Writer)) -> Metadata {
    let mut writer = Writer::new();
    fill(&mut writer);
    Header::parse(&writer.finish()).unwrap().metadata
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}
