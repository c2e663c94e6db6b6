//! From what nodes tell of themselves to what each is asked to run.

use placement::{
    Ask, FACTS_VERSION, Facts, LISTEN_MAX, Link, Links, Objective, PATHS_MAX, Path, PlacementError,
    Plan,
};

use crate::made::{GIGABIT, ask, model, node};

fn facts(name: &str, memory_gib: f64) -> Facts {
    Facts {
        version: FACTS_VERSION,
        model: "digest".into(),
        engine: "1".into(),
        arith: 1,
        device: "cpu".into(),
        threads: 4,
        cores: 8,
        disk_bytes: 1 << 40,
        measured_at: 1_000,
        listen: vec![format!("{name}.lan:7400")],
        paths: Vec::new(),
        node: node(name, memory_gib, 1e-3),
    }
}

fn path(address: &str, round_trip_s: f64, there: f64, back: f64) -> Path {
    Path {
        address: address.into(),
        node: None,
        round_trip_s,
        bytes_per_s: there,
        back_bytes_per_s: back,
        measured_at: 1_000,
    }
}

#[test]
fn measured_links_are_the_best_paths_from_either_end() {
    let [mut a, mut b, c] = ["a", "b", "c"].map(|name| facts(name, 8.0));
    b.listen = vec!["10.0.0.2:7400".into(), "169.254.0.2:7400".into()];
    a.paths = vec![
        path("10.0.0.2:7400", 1e-3, 1e7, 2e7),
        path("169.254.0.2:7400", 2e-4, 1e9, 2e9),
        path("192.168.7.7:7400", 1e-6, 1e12, 1e12),
    ];
    // c was only asked by b, which found it dead.
    b.paths = vec![Path { node: Some("c".into()), ..path("c.lan:7401", 0.0, 0.0, 0.0) }];
    let all = [a.clone(), b.clone(), c];
    let links = Links::measured(&all, Some(GIGABIT));
    let fast = |bytes_per_s| Some(Link { latency_s: 1e-4, bytes_per_s });
    assert_eq!(links.get(0, 1), fast(1e9), "the best of two addresses");
    assert_eq!(links.get(1, 0), fast(2e9), "turned round, at the rate from there");
    assert_eq!([links.get(1, 2), links.get(2, 1)], [None, None], "a dead path is no link");
    assert_eq!(links.get(0, 2), Some(GIGABIT), "what nobody measured is as it was said");
    assert_eq!(Links::measured(&all, None).get(0, 2), None);
}

#[test]
fn a_slow_path_is_not_taken_for_a_fast_one() {
    let [mut a, b] = ["a", "b"].map(|name| facts(name, 64.0));
    let ask = Ask { objective: Objective::Prompt, prompt: 4_000, ..ask() };
    let mut world = |rate: f64| {
        a.paths = vec![path("b.lan:7400", 2e-4, rate, rate)];
        let all = [a.clone(), b.clone()];
        let links = Links::measured(&all, Some(GIGABIT));
        let plan = Plan::make((&model(32, 100), "digest"), &all, &links, &ask, None);
        plan.unwrap().choice.best.world()
    };
    assert_eq!([world(118e6), world(5e5)], [2, 1]);
}

#[test]
fn every_rank_is_told_what_to_hold_and_whom_to_reach() {
    let [mut a, b, c] = [("a", 4.0), ("b", 4.0), ("c", 4.0)].map(|(n, gib)| facts(n, gib));
    let far = path("203.0.113.7:7400", 1e-3, 1e8, 1e8);
    a.paths = vec![Path { node: Some("b".into()), ..far }];
    let all = [a, b, c];
    let links = Links::measured(&all, Some(GIGABIT));
    let model = model(30, 300);
    let plan = Plan::make((&model, "digest"), &all, &links, &ask(), Some("a:0-9,b:10-19,c:20-29"));
    let plan = plan.unwrap();
    assert_eq!((&*plan.layout, plan.ranks.len()), ("0:10,10:20,20:30", 3));
    let nexts: Vec<&[String]> = plan.ranks.iter().map(|rank| &*rank.next).collect();
    assert_eq!(nexts[0], ["203.0.113.7:7400", "b.lan:7400"], "the measured address first");
    assert_eq!((nexts[1], nexts[2]), (&["c.lan:7400".into()][..], &["a.lan:7400".into()][..]));
    assert_eq!(
        plan.ranks[0].arguments("M").join(" "),
        "serve M --layout 0:10,10:20,20:30 --device cpu --threads 4 --listen a.lan:7400 \
         --next 203.0.113.7:7400"
    );
    assert_eq!(
        plan.ranks[2].arguments("M").join(" "),
        "stage M --rank 2 --layout 0:10,10:20,20:30 --device cpu --threads 4 \
         --listen c.lan:7400 --next a.lan:7400"
    );
    for (rank, order) in plan.ranks.iter().enumerate() {
        assert_eq!(order.memory_bytes, plan.prediction.memory[rank].total_bytes());
        assert_eq!((order.layers.clone(), order.rank), (rank * 10..rank * 10 + 10, rank as u32));
    }
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan, "it travels");
    // One machine alone listens for nobody.
    let alone = Plan::make((&model, "digest"), &all, &links, &ask(), Some("b:0-29"));
    assert!(matches!(alone, Err(PlacementError::TooSmall { .. })));
    let roomy = [facts("b", 64.0)];
    let links = Links::measured(&roomy, None);
    let alone = Plan::make((&model, "digest"), &roomy, &links, &ask(), None).unwrap();
    let words = alone.ranks[0].arguments("M").join(" ");
    assert_eq!(words, "serve M --layout 0:30 --device cpu --threads 4");
}

#[test]
fn members_of_a_group_meet_on_the_port_after_the_rings() {
    let mut all = ["a", "b"].map(|name| facts(name, 6.0));
    all[1].node.device = all[0].node.device.clone();
    let fast = Link { latency_s: 1e-6, bytes_per_s: 1e11 };
    let links = Links::measured(&all, Some(fast));
    let ask = Ask { groups: true, objective: Objective::Decode, ..ask() };
    let plan = Plan::make((&model(30, 300), "digest"), &all, &links, &ask, None).unwrap();
    assert!(plan.layout.starts_with("0:30@"), "{}", plan.layout);
    let [leader, other] = &plan.ranks[..] else { panic!("{:?}", plan.ranks) };
    assert_eq!((leader.member, other.member), (0, 1));
    assert_eq!(leader.group, ["a.lan:7401", "b.lan:7401"]);
    assert_eq!(leader.group, other.group);
    assert!(other.arguments("M").join(" ").contains("--rank 0 --member 1"));
}

#[test]
fn facts_that_do_not_fit_are_refused_by_name() {
    let good = || facts("a", 8.0);
    let mut many = good();
    many.paths = vec![path("x:1", 0.0, 1.0, 1.0); PATHS_MAX + 1];
    let mut wide = good();
    wide.listen = vec!["x:1".into(); LISTEN_MAX + 1];
    let mut wild = good();
    wild.paths = vec![path("x:1", -1.0, 1.0, 1.0)];
    for (bad, word) in [
        (Facts { version: 1, ..good() }, "version: expected 4, found 1"),
        (Facts { model: "other".into(), ..good() }, "model: expected digest, found other"),
        (many, "paths: expected at most 256, found 257"),
        (wide, "listen: expected at most 16, found 17"),
        (wild, "paths: expected times and rates of 0 or more, found -1"),
    ] {
        let error = Facts::check_all(&[bad], "digest").unwrap_err().to_string();
        assert!(error.starts_with("a: ") && error.contains(word), "{error}");
    }
    let error = Facts::check_all(&[good(), good()], "digest").unwrap_err().to_string();
    assert!(error.contains("one node of a name"), "{error}");
    let mut most = good();
    most.paths = vec![path("x:1", 0.0, 1.0, 1.0); PATHS_MAX];
    most.listen = vec!["x:1".into(); LISTEN_MAX];
    assert_eq!(Facts::check_all(&[most], "digest"), Ok(()));
}
