//! Ranks that must not join: another secret, model or layout; and addresses and files that are
//! refused before anything listens.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use weights::synthetic::Llama;

use crate::model::{LAYERS, TINY, scratch, tiny};
use crate::process::{Baton, s};
use crate::ring::{ByHand, new_key};
use crate::turn::Turn;

fn two_ranks(name: &str) -> ByHand {
    ByHand::new(name, &TINY, &format!("0:4,4:{LAYERS}"))
}

/// Rank 1 as `other` describes it against a rank 0 of `ring`: both logs and /ready hold `code`, and
/// rank 0 goes on waiting.
fn refused(ring: &ByHand, other: &ByHand, code: &str, detail: &str) {
    let stage = other.stage(1);
    let mut server = ring.serve();
    let (_, ours) = server.process.log.wait(code, s(10));
    let (_, theirs) = stage.log.wait(code, s(10));
    assert!(ours.contains("rank 1"), "{ours}");
    for line in [&ours, &theirs] {
        assert!(line.contains(detail), "{line}");
    }
    let said = crate::process::wait_for(s(10), || {
        let (status, ready) = server.get("/ready");
        assert_eq!(status, 503, "{ready}");
        ready["detail"].as_str().filter(|detail| detail.contains(code)).map(str::to_owned)
    });
    assert!(said.is_some(), "/ready never said {code}\n{}", server.process.log.text());
    assert!(server.process.is_alive());
}

#[test]
fn another_secret_is_named_on_both_ends() {
    let _turn = Turn::shared();
    let ring = two_ranks("secret");
    let other = ByHand { key: Some(new_key("secret-other")), ..ring.clone() };
    refused(&ring, &other, "BadSecret", "");
}

#[test]
fn another_model_is_named_with_what_differs() {
    let _turn = Turn::shared();
    let ring = two_ranks("model");
    let wider = Llama { intermediate: 192, ..Llama::default() };
    let other = ByHand { model: tiny("wider", &wider), ..ring.clone() };
    refused(&ring, &other, "OtherFingerprint", "config.intermediate: expected 1");
}

#[test]
fn another_layout_is_named_with_both() {
    let _turn = Turn::shared();
    let ring = two_ranks("layout");
    let other = ByHand { layout: format!("0:5,5:{LAYERS}"), ..ring.clone() };
    refused(&ring, &other, "OtherFingerprint", "0:5,5:8");
}

/// The same shapes, other values: no fingerprint sees it, the tensors' digests do.
#[test]
fn the_same_shapes_with_other_weights_are_refused_by_their_digests() {
    let _turn = Turn::shared();
    let ring = two_ranks("weights");
    let model = tiny("reseeded", &Llama { seed: 2, ..Llama::default() });
    let other = ByHand { model, ..ring.clone() };
    refused(&ring, &other, "OtherTensor", "");
}

/// Arguments of a rank 1 that never gets to listen.
fn stage_with(listen: &str, key: Option<&Path>) -> Baton {
    let mut args = vec!["stage", TINY.to_str().unwrap(), "--rank", "1", "--layout", "0:4,4:8"];
    args.extend(["--listen", listen, "--next", "127.0.0.1:9"]);
    if let Some(key) = key {
        args.extend(["--key", key.to_str().unwrap()]);
    }
    Baton::start(args)
}

/// Ends with status 1 and one line for its user, which holds `code`.
fn ends_with(mut process: Baton, code: &str) {
    assert_eq!(process.exit(s(20)).code(), Some(1), "{}", process.log.text());
    let said = process.log.to_end(s(5));
    let line = said.lines().last().unwrap();
    assert!(line.starts_with("baton: ") && line.contains(code), "{said}");
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let _turn = Turn::shared();
    let key = new_key("open");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    ends_with(stage_with("127.0.0.1:0", Some(&key)), "SecretFileMode");
    let short = scratch("short.key");
    std::fs::write(&short, "fifteen bytes !").unwrap();
    std::fs::set_permissions(&short, PermissionsExt::from_mode(0o600)).unwrap();
    ends_with(stage_with("127.0.0.1:0", Some(&short)), "SecretTooShort");
}

#[test]
fn a_key_is_never_written_over() {
    let _turn = Turn::shared();
    let key = new_key("kept");
    let before = std::fs::read(&key).unwrap();
    let mut again = Baton::start(["key", "new", key.to_str().unwrap()]);
    assert_eq!(again.exit(s(10)).code(), Some(1));
    assert_eq!(std::fs::read(&key).unwrap(), before);
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn addresses_that_reach_too_far_are_refused() {
    let _turn = Turn::shared();
    let key = new_key("addresses");
    ends_with(stage_with("0.0.0.0:0", Some(&key)), "WildcardListen");
    ends_with(stage_with("[::]:0", Some(&key)), "WildcardListen");
    ends_with(stage_with("192.0.2.1:7000", None), "KeylessAddress");
}
