//! The cases in which others place badly.

use placement::{
    Ask, Bound, Choice, Kind, Layer, Link, Links, Model, Node, Objective, Path, Placement,
    PlacementError, Problem, Split, Stage, choose, predict, table,
};

use crate::made::{GIGABIT, MIB, ask, model, node};

fn layers(nodes: &[Node], links: &Links, model: &Model, ask: &Ask) -> Vec<(usize, usize)> {
    let problem = Problem::new(model, nodes, links, ask).expect("a problem");
    let best = choose(&problem).expect("a placement").best;
    best.stages.iter().map(|stage| (stage.nodes[0], stage.layers.len())).collect()
}

#[test]
fn no_node_gets_less_than_a_layer() {
    // 20 | 1 | -1: three nodes, of which one holds nearly all.
    let nodes = [node("a", 20.0, 1e-3), node("b", 1.5, 1e-3), node("c", 0.1, 1e-3)];
    let cut = layers(&nodes, &Links::alike(3, GIGABIT), &model(20, 1_000), &ask());
    assert!(cut.iter().all(|(_, layers)| *layers > 0), "{cut:?}");
    assert_eq!(cut.iter().map(|(_, layers)| layers).sum::<usize>(), 20);
    assert!(cut.iter().all(|(node, _)| *node != 2), "a node without room holds nothing: {cut:?}");
}

#[test]
fn the_biggest_memory_does_not_draw_the_model_to_a_slow_node() {
    // 256 GiB at 1x beside 24 GiB at 20x; the model needs 30.
    let nodes = [node("ram", 256.0, 20e-3), node("card", 24.0, 1e-3)];
    let links = Links::alike(2, GIGABIT);
    let cut = layers(&nodes, &links, &model(30, 1_024), &ask());
    let [card, ram] = [1, 0].map(|n| cut.iter().find(|c| c.0 == n).map_or(0, |c| c.1));
    assert!(card >= 22, "the card is full: {cut:?}");
    assert_eq!(card + ram, 30);
    // What fits the card alone stays there.
    let cut = layers(&nodes, &links, &model(20, 1_024), &ask());
    assert_eq!(cut, [(1, 20)], "use one machine");
}

#[test]
fn memory_first_does_not_crowd_one_node() {
    // 36 layers of 240 MiB, 8.7 GB on one node by weights alone; with KV and buffers it is more.
    let model = Model { kv_bytes: 8_192, ..model(36, 240) };
    let nodes = [node("big", 9.2, 1e-3), node("other", 9.5, 1e-3)];
    let ask = Ask { context: 32_768, streams: 1, ..ask() };
    let links = Links::alike(2, GIGABIT);
    let problem = Problem::new(&model, &nodes, &links, &ask).expect("a problem");
    let best = choose(&problem).expect("a placement").best;
    let told = predict(&problem, &best).expect("linked");
    for (stage, memory) in best.stages.iter().zip(&told.memory) {
        let whole = stage.layers.len() as u64;
        assert_eq!(memory.kv_bytes, whole * 8_192 * (32_768 + 64), "KV at the asked context");
        assert!(memory.total_bytes() <= nodes[stage.nodes[0]].memory_bytes);
    }
    let ends: Vec<u64> = told.memory.iter().map(|memory| memory.ends_bytes).collect();
    assert_eq!(ends, [model.ends_bytes, 0], "rank 0 holds the ends");
    assert_eq!(best.world(), 2, "all of it with KV is over either: {best:?}");
    // 35 of 36 layers on one node: its weights are 8.4 GB of 9.2, and what it would hold is not.
    let crowded = problem.given("big:0-34,other:35-35").expect_err("over memory");
    let PlacementError::TooSmall { node, need_bytes, have_bytes } = crowded else {
        panic!("{crowded}")
    };
    assert_eq!((node.as_str(), have_bytes), ("big", nodes[0].memory_bytes));
    assert!(35 * 240 * MIB < have_bytes && need_bytes > have_bytes, "{need_bytes}");
}

#[test]
fn what_fits_by_130_mb_of_weights_gets_a_layer_less_or_is_refused() {
    // 23 layers of 1,000 MiB leave 130 MB on b; KV, buffers and the runtime need more.
    let model = model(30, 1_000);
    let room = 23 * 1_000 * MIB + 130_000_000;
    let mut nodes = [node("a", 12.0, 4e-3), node("b", 0.0, 1e-3)];
    nodes[1].memory_bytes = room;
    let links = Links::alike(2, GIGABIT);
    let ask = Ask { context: 16_384, head: Some(0), ..ask() };
    let problem = Problem::new(&model, &nodes, &links, &ask).expect("a problem");
    let refused = problem.given("a:0-6,b:7-29").expect_err("over memory").to_string();
    assert!(refused.starts_with("b needs ") && refused.contains("MiB are missing"), "{refused}");
    let cut = layers(&nodes, &links, &model, &ask);
    assert_eq!(cut.iter().map(|(_, layers)| layers).sum::<usize>(), 30);
    let on_b = cut.iter().find(|(node, _)| *node == 1).map_or(0, |(_, layers)| *layers);
    assert_eq!(on_b, 21, "the fast node is full, with all that it holds: {cut:?}");
    let alone = Problem::new(&model, &nodes[1..], &links, &ask);
    assert!(alone.is_ok_and(|alone| choose(&alone).is_err()));
}

#[test]
fn a_slow_link_changes_cut_and_prediction() {
    let nodes = [node("a", 64.0, 2e-3), node("b", 64.0, 2e-3)];
    let model = model(32, 100);
    let ask = Ask { objective: Objective::Prompt, prompt: 8_192, context: 9_000, ..ask() };
    let of = |rate: f64| {
        let links = Links::alike(2, Link { latency_s: 200e-6, bytes_per_s: rate });
        let problem = Problem::new(&model, &nodes, &links, &ask).expect("a problem");
        let choice = choose(&problem).expect("a placement");
        (choice.best.world(), choice.time_s)
    };
    let [fast, gigabit, slow] = [1.25e9, 118e6, 1e6].map(of);
    assert_eq!((fast.0, gigabit.0, slow.0), (2, 2, 1), "a link can be too slow for any ring");
    assert!(fast.1 < gigabit.1 && gigabit.1 < slow.1, "{fast:?} {gigabit:?} {slow:?}");
}

#[test]
fn a_prompt_wants_two_nodes_where_a_token_wants_one() {
    let nodes = [node("a", 64.0, 2e-3), node("b", 64.0, 2e-3)];
    let (model, links) = (model(32, 100), Links::alike(2, GIGABIT));
    let cut = |objective| layers(&nodes, &links, &model, &Ask { objective, ..ask() });
    assert_eq!(cut(Objective::Decode).len(), 1, "a ring of equal nodes makes no token faster");
    assert_eq!(cut(Objective::Prompt).len(), 2);
    assert_eq!(cut(Objective::Throughput).len(), 2);
}

#[test]
fn streams_ride_together_where_a_round_costs_more_than_its_rows() {
    let nodes = [node("a", 1.5, 2e-3), node("b", 1.5, 2e-3)];
    let (model, links) = (model(16, 100), Links::alike(2, GIGABIT));
    let ask = Ask { objective: Objective::Throughput, streams: 4, ..ask() };
    let told = |nodes: &[Node], ask: &Ask| {
        let problem = Problem::new(&model, nodes, &links, ask).expect("a problem");
        let choice = choose(&problem).expect("a placement");
        let told = predict(&problem, &choice.best).expect("linked");
        (choice.best.world(), told.groups, told.throughput_per_s, table(&problem, &choice))
    };
    // A second row costs a tenth of the first: two rounds of two rows keep both stages at work.
    let (world, groups, per_s, text) = told(&nodes, &ask);
    assert_eq!((world, groups), (2, 2), "{text}");
    assert!(!text.contains("--depth"), "{text}");
    // A node that nearly all time is spent on gains nothing by a second round beside it.
    let slow = [node("a", 1.5, 2e-3), node("b", 1.5, 200e-3)];
    let (world, groups, slower_per_s, text) = told(&slow, &ask);
    assert_eq!((world, groups), (2, 1), "{text}");
    assert!(slower_per_s < per_s && text.contains("best with --depth 1"), "{text}");
    let of_one = Ask { objective: Objective::Decode, ..ask };
    assert_eq!(told(&slow, &of_one).1, 2, "a server has as many as it has by itself");
}

#[test]
fn of_equal_placements_the_one_with_fewer_stages_and_the_first_nodes_is_taken() {
    let alike = |count: usize, gib| {
        (0..count).map(|at| node(&format!("n{at}"), gib, 1e-3)).collect::<Vec<_>>()
    };
    let free = Link { latency_s: 0.0, bytes_per_s: 1e15 };
    let (links, model) = (Links::alike(3, free), model(20, 100));
    for (gib, expected) in [(64.0, vec![0]), (1.9, vec![0, 1])] {
        let nodes = alike(3, gib);
        let used = |ask: &Ask| -> Vec<usize> {
            layers(&nodes, &links, &model, ask).iter().map(|(node, _)| *node).collect()
        };
        assert_eq!(used(&ask()), expected);
        assert_eq!(used(&Ask { excluded: vec![0], ..ask() }).first(), Some(&1));
        assert_eq!(used(&Ask { head: Some(2), ..ask() }).first(), Some(&2));
    }
}

#[test]
fn the_head_costs_rank_0_layers_when_streams_count() {
    let nodes = [node("a", 64.0, 2e-3), node("b", 64.0, 2e-3)];
    let ask = Ask { objective: Objective::Throughput, head: Some(1), ..ask() };
    let cut = layers(&nodes, &Links::alike(2, GIGABIT), &model(20, 100), &ask);
    assert_eq!(cut[0].0, 1, "rank 0 is where the endpoint is");
    assert!(cut[0].1 < cut[1].1, "the head weighs two layers: {cut:?}");
}

#[test]
fn both_ends_take_the_best_of_several_addresses() {
    let path = |address: &str, round_trip_s, bytes_per_s| Path {
        address: address.into(),
        node: None,
        round_trip_s,
        bytes_per_s,
        back_bytes_per_s: bytes_per_s,
        measured_at: 0,
    };
    let slow = path("10.0.0.9", 4e-3, 10e6);
    let dead = path("10.0.1.9", 1e-3, 0.0);
    let fast = path("169.254.1.9", 0.2e-3, 4e9);
    let one = [slow.clone(), dead.clone(), fast.clone()];
    let (place, link) = Link::best(&one, 1e6).expect("two are alive");
    assert_eq!((one[place].address.as_str(), link.bytes_per_s), ("169.254.1.9", 4e9));
    let twin = path("169.254.1.7", 0.2e-3, 4e9);
    let [there, back] = [[&fast, &twin, &slow], [&slow, &twin, &fast]]
        .map(|paths| paths.map(Path::clone))
        .map(|paths| Link::best(&paths, 1e6).map(|(place, _)| paths[place].address.clone()));
    assert_eq!(there, back, "whatever order they are told in");
    assert_eq!(Link::best(&[dead], 1e6), None);
}

#[test]
fn kinds_of_layers_have_times_of_their_own() {
    // The second half is recurrent and free on b: the cut follows the times, not the bytes.
    let kinds = [[Kind::Attention; 8], [Kind::Recurrent; 8]].concat();
    let layers_of = |kind: &Kind| Layer { kind: *kind, weight_bytes: 10 * MIB };
    let model = Model { layers: kinds.iter().map(layers_of).collect(), ..model(1, 1) };
    let (mut a, mut b) = (node("a", 8.0, 1e-3), node("b", 8.0, 1e-3));
    a.costs.recurrent = crate::made::curve(50e-3, 1e-3);
    b.costs.attention = crate::made::curve(50e-3, 1e-3);
    let nodes = [a, b];
    let cut = layers(&nodes, &Links::alike(2, GIGABIT), &model, &ask());
    assert_eq!(cut, [(0, 8), (1, 8)]);
}

#[test]
fn the_table_says_who_holds_what_and_what_bounds_it() {
    let nodes = [node("card", 9.0, 1e-3), node("mac", 12.0, 3e-3), node("box", 64.0, 30e-3)];
    let (model, links) = (model(28, 512), Links::alike(3, GIGABIT));
    let ask = Ask { context: 8_192, head: Some(1), ..ask() };
    let problem = Problem::new(&model, &nodes, &links, &ask).expect("a problem");
    let choice = choose(&problem).expect("a placement");
    let told = predict(&problem, &choice.best).expect("linked");
    assert_eq!(told.bound, Bound::Stage(0), "{told:?}");
    let text = table(&problem, &choice);
    for part in ["| 0 | mac | 0:", "| 1 | card |", "runner-up:", "bound by rank 0, mac", "1k, 8k"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains("| box |"), "{text}");
}

#[test]
fn prompts_in_pairs_cost_the_members_of_groups_and_nobody_else() {
    let made = model(20, 1_000);
    let (twin, ask) = (Model { twin_bytes: 40 * MIB, ..made.clone() }, ask());
    let nodes = [node("a", 40.0, 1e-3), node("b", 40.0, 1e-3)];
    let links = Links::alike(2, GIGABIT);
    let group = |split| Stage { nodes: vec![0, 1], split, layers: 0..20 };
    for (stage, costs) in [
        (group(Some(Split::Shards)), 40 * MIB),
        (Stage { nodes: vec![0], split: None, layers: 0..20 }, 0),
    ] {
        let [with, without] =
            [&twin, &made].map(|model| placement::need(model, &ask, &stage, true, &nodes[0]));
        assert_eq!(with.work_bytes - without.work_bytes, costs);
        let problem = Problem::new(&twin, &nodes, &links, &ask).expect("a problem");
        let best = Placement { stages: vec![stage] };
        let choice = Choice { best, time_s: 1.0, runner_up: None, one: None };
        let text = table(&problem, &choice);
        // A token has 20 layers of 2,048 bytes, shared by two; a page 64 tokens.
        let line = "rank 0: prompts in pairs take 40.0 MiB of each member, 32 KV pages less";
        assert_eq!(text.contains(line), costs > 0, "{text}");
    }
}
