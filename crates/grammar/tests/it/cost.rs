//! What grammars cost over a real vocabulary, for those who look.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use baton_grammar::{Body, Form, Grammars};
use sched::sample::{Verdict, argmax};
use serde_json::json;
use text::Text;
use weights::Checkpoint;

/// What a model says, given the schema below.
const REPLY: &str = "{\"name\": \"North Sea\", \"depth\": 95, \"notes\": [\"It is shallow, and its \
                     tides are strong.\", \"Ships have crossed it for ages.\"]}";

#[test]
#[ignore = "measures; wants BATON_SMOLLM2"]
fn masks_over_a_real_vocabulary() {
    let Some(path) = std::env::var_os("BATON_SMOLLM2").map(PathBuf::from) else {
        println!("skipped: BATON_SMOLLM2 is not set");
        return;
    };
    let text = Text::from_checkpoint(&Checkpoint::open(&path).unwrap()).unwrap();
    let started = Instant::now();
    let grammars = Grammars::new(&text).unwrap();
    let trie = started.elapsed();
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "depth", "notes"],
        "properties": {
            "name": {"type": "string"}, "depth": {"type": "integer"},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
    });
    let form = Form { open: None, after: None, body: Body::Json(schema) };
    let started = Instant::now();
    let grammar = grammars.compile(&form).unwrap();
    let compile = started.elapsed();
    let mut mask = grammar.start();
    let mut times = Vec::new();
    let mut logits = vec![0.0; text.vocab()];
    assert_eq!(mask.cut(&mut logits), Verdict::Cut);
    for id in text.encode_plain(REPLY).unwrap() {
        let started = Instant::now();
        mask.push(id);
        logits.fill(0.0);
        let verdict = mask.cut(&mut logits);
        times.push(started.elapsed());
        assert!(verdict != Verdict::Cut || logits[argmax(&logits) as usize].is_finite());
    }
    let sum: Duration = times.iter().sum();
    println!(
        "cost: {} tokens: trie {:.0} ms once, grammar {:.2} ms, a mask {:.3} ms, at most {:.3} ms",
        text.vocab(),
        trie.as_secs_f64() * 1e3,
        compile.as_secs_f64() * 1e3,
        sum.as_secs_f64() * 1e3 / times.len() as f64,
        times.iter().max().unwrap().as_secs_f64() * 1e3,
    );
}
