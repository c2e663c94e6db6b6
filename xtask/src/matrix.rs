//! Drafts over rings, and every kind of group: the same bytes; and what guesses win.

use anyhow::{Result, bail};

use crate::step::{Steps, cargo};

/// The tests that print the matrix and the draft head's acceptance.
const TESTS: [&str; 2] = [
    "check::acceptance::the_draft_head_is_right_as_often_as_its_card_says",
    "check::matrix::drafts_move_no_byte_in_any_ring",
];
/// The test that prints tokens a second, for a quiet machine.
const SPEED: &str =
    "check::speed::drafts_win_time_where_they_can_and_cost_little_where_they_can_not";
/// The test over processes that prints every layout beside one machine.
const LAYOUTS: &str = "columns::every_layout_has_one_hash_a_column";

/// Runs the draft head of baton-tiny beside its card, then every cell of {who guesses, how tokens
/// are drawn, ranks, depth, streams, fresh or from kept states}; the last line counts the cells.
/// With `--layouts` every kind of group and ring over real processes instead, one hash a column;
/// with `--speed` the tokens a second with and without drafts.
///
/// # Errors
/// The first cell that differs, or a figure that is not reached.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let (of, tests): (&[&str], _) = match arguments {
        [] => (&["--bin", "baton"], &TESTS[..]),
        [one] if one == "--layouts" => (&["--test", "it"], &[LAYOUTS][..]),
        [one] if one == "--speed" => (&["--bin", "baton"], &[SPEED][..]),
        _ => bail!("cargo xtask matrix [--layouts|--speed]"),
    };
    for test in tests {
        let mut command = cargo(&["test", "--quiet", "--locked", "--package", "baton"]);
        command.args(of).args(["--", "--ignored", "--exact", test, "--nocapture"]);
        steps.run("matrix", &mut command)?;
    }
    Ok(())
}
