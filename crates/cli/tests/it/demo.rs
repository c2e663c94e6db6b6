//! `baton demo`.

use crate::model::smollm2;
use crate::process::{Baton, s};
use crate::turn::Turn;

#[test]
fn the_demo_answers_and_proves_that_three_ranks_equal_one() {
    let Some(model) = smollm2("the_demo_answers_and_proves_that_three_ranks_equal_one") else {
        return;
    };
    let _turn = Turn::alone();
    let model = model.to_str().unwrap();
    let mut demo = Baton::start(["demo", "--model", model, "--max-tokens", "24"]);
    demo.ends_well(s(120));
    let said = demo.out.to_end(s(5));
    assert!(said.contains("Paris"), "{said}");
    let verdict = said.lines().last().unwrap();
    let hash = verdict.strip_prefix("one hash: ").unwrap_or_else(|| panic!("{said}"));
    assert_eq!(hash.split_once(' ').unwrap().1, "from 3 ranks and from 1", "{said}");
}
