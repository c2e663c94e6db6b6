//! The search against every placement there is, on small cases.

use placement::{
    Ask, Choice, Kind, Layer, Link, Links, Model, Node, Objective, Placement, PlacementError,
    Problem, Split, Stage, choose,
};
use proptest::prelude::*;

use crate::made::{GIB, MIB, ask, model, node};

/// Every ring: every sequence of seats without a node twice, every cut.
fn all(problem: &Problem<'_>, nodes: &[Node], layers: usize, ask: &Ask) -> Vec<Placement> {
    let mut done = Vec::new();
    let mut open = vec![(Placement::default(), 0)];
    while let Some((start, at)) = open.pop() {
        if at == layers {
            let used = |node: &usize| start.stages.iter().any(|s| s.nodes.contains(node));
            let head = ask.head.is_none_or(|head| start.stages[0].nodes[0] == head);
            if ask.pinned.iter().all(used) && head && problem.check(&start).is_ok() {
                done.push(start);
            }
            continue;
        }
        for (members, split) in seats(&start, nodes, ask) {
            for end in at + 1..=layers {
                let mut next = start.clone();
                next.stages.push(Stage { nodes: members.clone(), split, layers: at..end });
                open.push((next, end));
            }
        }
    }
    done
}

fn seats(start: &Placement, nodes: &[Node], ask: &Ask) -> Vec<(Vec<usize>, Option<Split>)> {
    let free = |node: &usize| {
        !ask.excluded.contains(node) && !start.stages.iter().any(|s| s.nodes.contains(node))
    };
    let free: Vec<usize> = (0..nodes.len()).filter(free).collect();
    let mut seats: Vec<_> = free.iter().map(|node| (vec![*node], None)).collect();
    for picked in 0..1_u32 << free.len() {
        let is_picked = |(place, _): &(usize, &usize)| picked >> place & 1 == 1;
        let mut group: Vec<usize> =
            free.iter().enumerate().filter(is_picked).map(|(_, node)| *node).collect();
        group.sort_by_key(|node| (ask.head != Some(*node), *node));
        let alike = group.iter().all(|node| nodes[*node].device == nodes[group[0]].device);
        if ask.groups && group.len() > 1 && alike {
            seats.push((group.clone(), Some(Split::Shards)));
            seats.push((group, Some(Split::Rows)));
        }
    }
    seats
}

/// What must hold of any answer; `layers` of the model.
fn sound(choice: &Choice, problem: &Problem<'_>, layers: usize) {
    let mut next = 0;
    let mut used = Vec::new();
    for stage in &choice.best.stages {
        assert_eq!(stage.layers.start, next, "contiguous");
        assert!(!stage.layers.is_empty(), "no empty stage");
        next = stage.layers.end;
        used.extend(stage.nodes.clone());
    }
    assert_eq!(next, layers, "whole");
    used.sort_unstable();
    assert!(used.windows(2).all(|pair| pair[0] != pair[1]), "no node twice: {used:?}");
    problem.check(&choice.best).expect("within memory, over links");
    if let Some((_, one_s)) = &choice.one {
        assert!(choice.time_s <= *one_s, "never worse than one machine");
    }
}

prop_compose! {
    fn nodes()(made in prop::collection::vec((300..2_000_u64, 1..40_u32, 0..2_u8), 1..4))
        -> Vec<Node>
    {
        let one = |(index, (mib, speed, kind)): (usize, (u64, u32, u8))| Node {
            memory_bytes: mib * MIB,
            device: format!("kind {kind}"),
            ..node(&format!("n{index}"), 0.0, f64::from(speed) * 1e-4)
        };
        made.into_iter().enumerate().map(one).collect()
    }
}

fn links(nodes: usize) -> impl Strategy<Value = Links> {
    let link = prop::option::weighted(0.9, (1..2_000_u32, 1..1_000_u32)).prop_map(|made| {
        made.map(|(us, rate)| Link {
            latency_s: f64::from(us) * 1e-6,
            bytes_per_s: f64::from(rate) * 1e6,
        })
    });
    let row = prop::collection::vec(link, nodes);
    prop::collection::vec(row, nodes).prop_map(move |table| Links::new(nodes, table).expect("good"))
}

fn asked(nodes: usize) -> impl Strategy<Value = Ask> {
    let objective =
        prop_oneof![Just(Objective::Decode), Just(Objective::Prompt), Just(Objective::Throughput)];
    let node = move || prop::option::weighted(0.2, 0..nodes);
    (objective, 1..6_u32, node(), node(), node(), any::<bool>()).prop_map(
        |(objective, streams, head, pinned, excluded, groups)| Ask {
            objective,
            streams,
            head,
            pinned: pinned.into_iter().collect(),
            excluded: excluded.into_iter().collect(),
            groups,
            prompt: 2_000,
            ..ask()
        },
    )
}

fn small() -> impl Strategy<Value = (Vec<Node>, Links, Ask, Model)> {
    nodes().prop_flat_map(|nodes| {
        let count = nodes.len();
        let layer = (any::<bool>(), 1..200_u64).prop_map(|(attention, mib)| Layer {
            kind: if attention { Kind::Attention } else { Kind::Recurrent },
            weight_bytes: mib * MIB,
        });
        let layers = prop::collection::vec(layer, 1..7);
        let model = layers.prop_map(|layers| Model { layers, state_bytes: MIB, ..model(1, 1) });
        (Just(nodes), links(count), asked(count), model)
    })
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_best_is_what_brute_force_finds((nodes, links, ask, model) in small()) {
        let problem = Problem::new(&model, &nodes, &links, &ask).expect("small");
        let layers = model.layers.len();
        let every = all(&problem, &nodes, layers, &ask);
        let least = every.iter().filter_map(|p| problem.time_s(p)).min_by(f64::total_cmp);
        match (choose(&problem), least) {
            (Ok(choice), Some(least)) => {
                sound(&choice, &problem, layers);
                let own = problem.time_s(&choice.best).expect("linked");
                prop_assert!((own - choice.time_s).abs() <= 1e-9 * own);
                prop_assert!((choice.time_s - least).abs() <= 1e-9 * least, "{choice:?} {least}");
                prop_assert_eq!(choose(&problem).expect("again"), choice, "stable");
            }
            (Err(_), None) => {}
            (found, least) => prop_assert!(false, "{found:?} beside {least:?}"),
        }
    }

    #[test]
    fn whatever_is_missing_would_do((nodes, links, ask, model) in small()) {
        let problem = Problem::new(&model, &nodes, &links, &ask).expect("small");
        let Err(PlacementError::NoRoom { missing_bytes, context, .. }) = choose(&problem) else {
            return Ok(());
        };
        let free = Links::alike(nodes.len(), Link { latency_s: 0.0, bytes_per_s: GIB as f64 });
        let fits = |more: u64, ask: &Ask| {
            let roomier = |node: &Node| {
                let memory_bytes = node.memory_bytes + more;
                Node { memory_bytes, ..node.clone() }
            };
            let nodes: Vec<Node> = nodes.iter().map(roomier).collect();
            choose(&Problem::new(&model, &nodes, &free, ask).expect("small")).is_ok()
        };
        // Pins and exclusions can leave nothing to choose from, whatever the memory.
        if fits(u64::from(u32::MAX) << 10, &ask) {
            prop_assert!(fits(missing_bytes, &ask) && !fits(missing_bytes - 1, &ask));
        }
        if let Some(context) = context {
            let shorter = Ask { context, ..ask.clone() };
            prop_assert!(fits(0, &shorter));
            let longer = Ask { context: context + 64, ..ask.clone() };
            prop_assert!(!fits(0, &longer));
        }
    }
}
