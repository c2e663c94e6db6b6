//! `baton doctor`: what keeps this machine's rank and its neighbour from forming a ring, one line a
//! check, with what to do about it.

use anyhow::{Context, Result, ensure};
use arith::base::Rank;
use ring::key::Key;
use wire::layout::Layout;

use crate::args::Doctor;
use crate::model::Model;
use crate::rank::Place;
use crate::source;

mod door;
mod group;
mod own;

/// The lines so far.
#[derive(Default)]
pub struct Findings {
    failed: u32,
    checks: u32,
}

impl Findings {
    fn ok(&mut self, check: &str, found: impl std::fmt::Display) {
        self.checks += 1;
        println!("ok    {check}: {found}");
    }

    /// `next` is what to do about it.
    fn fail(&mut self, check: &str, found: impl std::fmt::Display, next: impl std::fmt::Display) {
        self.checks += 1;
        self.failed += 1;
        println!("FAIL  {check}: {found} -> {next}");
    }
}

/// Runs every check that can be run.
///
/// # Errors
/// The number of checks that failed; a rank or an address that was not given.
pub fn run(args: &Doctor) -> Result<()> {
    let (rank, serve) = (Rank(args.rank), &args.place);
    // A member but the leader has no place in the ring, and one group alone has no ring.
    let in_ring = args.member == 0 && (serve.by_hand.group.is_empty() || world(args) > 1);
    ensure!(
        !in_ring || !serve.by_hand.listen.is_empty() && serve.by_hand.next.is_some(),
        "--listen and --next are needed, as `baton stage` and `baton serve` over machines take them"
    );
    let mut findings = Findings::default();
    let key = key(args, &mut findings);
    let model = model(args, &mut findings);
    for address in &serve.by_hand.listen {
        own::listens(*address, serve.by_hand.key.is_some(), &mut findings);
    }
    let place = Place {
        rank,
        member: args.member as usize,
        group: serve.by_hand.group.clone(),
        listen: serve.by_hand.listen.clone(),
        next: serve.by_hand.next.iter().cloned().collect(),
        key: key.clone().flatten(),
        encryption: serve.shared.encryption.into(),
    };
    let known = key.as_ref().and(model.as_ref());
    if place.member > 0 || !place.group.is_empty() {
        group::members(&place, known, &mut findings);
    }
    for next in &place.next {
        let way = door::Way {
            next,
            rank: Rank((args.rank + 1) % world(args).max(1)),
            has_key: serve.by_hand.key.is_some(),
        };
        door::reaches(&way, &place, known, &mut findings);
    }
    findings.ok("clock", "does not matter: no rank compares its time with another's");
    let Findings { failed, checks } = findings;
    ensure!(failed == 0, "{failed} of {checks} checks failed");
    println!("nothing is wrong that can be seen from here; run it on the other machines too");
    Ok(())
}

/// The key; `Some(None)` where none was asked for, `None` where it can't be used.
fn key(args: &Doctor, findings: &mut Findings) -> Option<Option<Key>> {
    let Some(file) = &args.place.by_hand.key else {
        findings.ok("key", "none: every address must be loopback");
        return Some(None);
    };
    match Key::load(file) {
        Ok(key) => {
            findings.ok("key", format!("{} is readable by its owner only", file.display()));
            Some(Some(key))
        }
        Err(error) => {
            let text = error.to_string();
            let next = match () {
                () if text.contains("SecretFileMode") => format!("chmod 600 {}", file.display()),
                () if text.contains("SecretToo") => "make one with `baton key new`".into(),
                () => "copy the ring's key file here, or make one with `baton key new`".into(),
            };
            findings.fail("key", text, next);
            None
        }
    }
}

/// The model under the settings given, as the rank would open it.
fn model(args: &Doctor, findings: &mut Findings) -> Option<Model> {
    let shared = &args.place.shared;
    let opened = source::resolve(&shared.model)
        .and_then(|path| Model::open(&path, shared.settings(args.place.world)))
        .with_context(|| shared.model.clone())
        .and_then(|model| {
            let (range, print) = (model.range(Rank(args.rank))?, model.fingerprint()?.digest());
            Ok((model, range, source::hex(&print[..8])))
        });
    match opened {
        Ok((model, range, print)) => {
            let (name, layers) = (model.name(), model.checkpoint.config().layers());
            let (first, end) = (range.start, range.end);
            findings.ok("model", format!("{name}, {layers} layers, fingerprint {print}"));
            findings.ok("layout", format!("rank {} holds layers {first}..{end}", args.rank));
            Some(model)
        }
        Err(error) => {
            let next = "name the file, --layout and --rank as on the other machines";
            findings.fail("model", crate::line(&error), next);
            None
        }
    }
}

/// Ranks of the ring, also where the model can't be opened.
fn world(args: &Doctor) -> u32 {
    let layout = args.place.shared.layout.as_deref();
    let layout = layout.and_then(|text| Layout::parse(text).ok());
    layout.map_or(args.place.world, |layout| layout.world())
}
