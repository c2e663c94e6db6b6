//! `baton demo`.

use crate::process::{Baton, s};
use crate::turn::Turn;

#[test]
fn the_demo_answers_from_the_binary_alone_and_proves_that_three_ranks_equal_one() {
    let _turn = Turn::alone();
    let mut demo = Baton::start(["demo", "What is the capital of France?"]);
    demo.ends_well(s(120));
    let said = demo.out.to_end(s(5));
    // What the model's card says that it answers.
    assert!(said.contains("The capital of France is Paris."), "{said}");
    // Both cuts are inside a run of recurrent layers.
    assert!(said.contains("layers 0:2,2:5,5:8"), "{said}");
    let verdict = said.lines().last().unwrap();
    let hash = verdict.strip_prefix("one hash: ").unwrap_or_else(|| panic!("{said}"));
    assert_eq!(hash.split_once(' ').unwrap().1, "from 3 ranks and from 1", "{said}");
}
