//! The ways to the other members of this rank's group.

use arith::base::Rank;
use shard::ShardError;

use super::door::{Named, field_advice};
use super::{Findings, own};
use crate::model::Model;
use crate::rank::Place;

/// Whether the members before this one are where they should be and would let it in, and whether
/// those after it could connect here.
pub fn members(place: &Place, model: Option<&Model>, findings: &mut Findings) {
    let Place { rank, member, group, .. } = place;
    if let Some(count) = model.and_then(|model| Some(model.layout.group(*rank)?.members)) {
        let found = format!("member {member} of {count}");
        if group.len() == count as usize && *member < group.len() {
            findings.ok("group", found);
        } else {
            let found = format!("{found}, {} addresses", group.len());
            let next = "name each member's address in --group, the same on each, and --member";
            return findings.fail("group", found, next);
        }
    } else if model.is_some() {
        let next = format!("rank {rank} of --layout has no group: add @shards2 or @rows2 to it");
        return findings.fail("group", "--group, --member for one machine", next);
    }
    let is_last = member + 1 == group.len();
    if let (false, Some(address)) = (is_last, group.get(*member)) {
        match address.parse() {
            Ok(address) => own::listens(address, place.key.is_some(), findings),
            // A name is the resolver's matter; `serve` and `stage` say what is wrong with it.
            Err(_) => findings.ok(&format!("listen {address}"), "by name"),
        }
    }
    for (peer, address) in group.iter().enumerate().take(*member) {
        reaches((peer, address), place, model, findings);
    }
    if !is_last {
        let later = group.len() - member - 1;
        findings.ok("members after", format!("{later} connect here: run the doctor on them too"));
    }
}

fn reaches(
    (peer, address): (usize, &str),
    place: &Place,
    model: Option<&Model>,
    findings: &mut Findings,
) {
    let (who, check) = (format!("member {peer}"), format!("member {peer} at {address}"));
    let named = Named { check: &check, who: &who, flag: "--group" };
    let Some(sockets) = named.resolve(address, findings) else { return };
    let Some((_, stream)) = named.connect(&sockets, findings) else { return };
    drop(stream);
    let Some(model) = model else {
        let next = "mend what failed above first";
        return findings.fail(&check, "not asked without key and model", next);
    };
    let asked = place.group_config(model).map(|config| shard::probe(config, peer));
    match asked {
        Ok(Ok(())) => {
            findings.ok(&check, "lets this member in: version, key, group, model and settings");
        }
        Ok(Err(error)) => findings.fail(&check, &error, advice(&error, place.rank)),
        Err(error) => findings.fail(&check, crate::line(&error), "name the whole model file"),
    }
}

fn advice(error: &ShardError, rank: Rank) -> String {
    let text = error.to_string();
    match error {
        ShardError::Refused { error, .. } => match error.code() {
            "OtherVersion" | "OtherCipher" => "install the same baton on both machines".into(),
            "OtherWorld" => format!("give rank {rank} the same --layout and --group everywhere"),
            "NotNeighbour" => "check --member on both, and the order in --group".into(),
            "OtherEncryption" => "encrypt on both machines or on neither".into(),
            "OtherFingerprint" => field_advice(&error.fault().field),
            _ => "something else than a member of this group has that port: look there".into(),
        },
        ShardError::Session { .. } => {
            "copy the key file again: `sha256sum` must say the same on both machines".into()
        }
        ShardError::Address(_) if text.contains("Keyless") => own::KEY.into(),
        _ => "something else than a member of this group has that port: look there".into(),
    }
}
