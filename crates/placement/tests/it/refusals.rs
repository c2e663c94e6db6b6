//! What can't be placed says why, in numbers.

use placement::{Ask, Curve, Link, Links, NODES_MAX, PlacementError, Point, Problem, choose};

use crate::made::{GIGABIT, MIB, ask, model, node};

#[test]
fn a_model_that_does_not_fit_says_what_is_missing_and_which_context_would_do() {
    let model = placement::Model { kv_bytes: 32_768, ..model(10, 100) };
    let nodes = [node("a", 1.0, 1e-3), node("b", 1.0, 1e-3)];
    let links = Links::alike(2, GIGABIT);
    let ask = Ask { context: 8_192, streams: 2, ..ask() };
    let problem = Problem::new(&model, &nodes, &links, &ask).expect("a problem");
    let error = choose(&problem).expect_err("too long a context");
    let PlacementError::NoRoom { nodes: 2, missing_bytes, context: Some(context) } = error else {
        panic!("{error:?}");
    };
    assert!(missing_bytes > 1_000 * MIB, "{missing_bytes}");
    assert!((64..8_192).contains(&context), "{context}");
    let text = error.to_string();
    assert!(text.contains("MiB more on each of 2 nodes") && text.contains("--context"), "{text}");
}

#[test]
fn layers_by_hand_are_held_against_model_and_memory() {
    let nodes = [node("a", 4.0, 1e-3), node("b", 1.0, 1e-3)];
    let (model, links, ask) = (model(20, 100), Links::alike(2, GIGABIT), ask());
    let problem = Problem::new(&model, &nodes, &links, &ask).expect("a problem");
    let given = |text: &str| problem.given(text);
    assert_eq!(given("b:0-2,a:3-19").expect("fits").layout(), "0:3,3:20");
    assert!(matches!(given("a:0-9,c:10-19"), Err(PlacementError::UnknownNode { .. })));
    for bad in ["a:0-9", "a:0-9,b:11-19", "a:0-9,a:10-19", "a:0-20", "a:1-19", "a", "a:5-3,b:0-1"] {
        assert!(matches!(given(bad), Err(PlacementError::BadCut { .. })), "{bad}");
    }
    let error = given("a:0-1,b:2-19").expect_err("b is too small");
    let text = error.to_string();
    assert!(text.starts_with("b needs ") && text.contains(" MiB are missing"), "{text}");
}

#[test]
fn nodes_that_do_not_reach_each_other_are_named() {
    let nodes = [node("a", 1.4, 1e-3), node("b", 1.4, 1e-3)];
    let (model, ask) = (model(16, 100), ask());
    let table = vec![vec![None, Some(GIGABIT)], vec![None, None]];
    let links = Links::new(2, table).expect("a table");
    let problem = Problem::new(&model, &nodes, &links, &ask).expect("a problem");
    let error = choose(&problem).expect_err("b does not reach a");
    assert_eq!(error, PlacementError::NoLink { from: "b".into(), to: "a".into() });
}

#[test]
fn limits_and_nonsense_are_refused() {
    let (model, ask) = (model(4, 10), ask());
    let many = vec![node("n", 1.0, 1e-3); NODES_MAX + 1];
    let links = Links::alike(many.len(), GIGABIT);
    for nodes in [&many[..], &[]] {
        let error = Problem::new(&model, nodes, &links, &ask).expect_err("too many or none");
        assert!(matches!(error, PlacementError::Nodes { .. }));
    }
    let deep = crate::made::model(placement::LAYERS_MAX + 1, 1);
    let error = Problem::new(&deep, &many[..1], &links, &ask).expect_err("too deep");
    assert!(matches!(error, PlacementError::Layers { .. }));
    let point = |context, rows, time_s| Point { context, rows, time_s };
    for points in [
        vec![point(0, 1, f64::NAN)],
        vec![point(0, 0, 1.0)],
        vec![point(0, 1, -1.0)],
        vec![point(0, 1, 1.0), point(64, 2, 1.0)],
    ] {
        assert!(matches!(Curve::new("layer", points), Err(PlacementError::BadCost { .. })));
    }
    let bad = Link { latency_s: 0.0, bytes_per_s: 0.0 };
    assert!(Links::new(1, vec![vec![Some(bad)]]).is_err());
    assert!(Links::new(2, vec![vec![None; 2]]).is_err());
}

#[test]
fn times_lie_on_lines_between_what_was_measured_and_beyond() {
    let point = |context, rows, time_s| Point { context, rows, time_s };
    let curve = Curve::new(
        "layer",
        vec![point(0, 1, 1.0), point(0, 9, 5.0), point(100, 1, 2.0), point(100, 9, 6.0)],
    )
    .expect("times");
    let expected =
        [((1.0, 0.0), 1.0), ((5.0, 0.0), 3.0), ((5.0, 50.0), 3.5), ((17.0, 200.0), 11.0)];
    for ((rows, context), time_s) in expected {
        assert!((curve.at(rows, context) - time_s).abs() < 1e-12, "{rows} {context}");
    }
}
