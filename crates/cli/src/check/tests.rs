#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::sync::LazyLock;

use arith::base::Rank;
use clap::Parser;
use stage::Fault;
use weights::synthetic::{self, Llama};

use super::*;
use crate::args::{Cli, Command};
#[cfg(feature = "gpu")]
use crate::model::Model;

/// A checkpoint of three layers.
static MODEL: LazyLock<PathBuf> = LazyLock::new(|| {
    let name = format!("baton-check-{}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    synthetic::llama(&path, &Llama::default()).unwrap();
    path
});

/// Compares three ranks, the last with a defect, with one sound rank.
fn three_against_one(fault: Option<Fault>) -> Result<()> {
    let line =
        "baton check --layouts 1;3 --threads 1 --chunks 16 --streams 2 --tokens 4 --prompt 20";
    let Command::Check(mut args) = Cli::parse_from(line.split(' ')).command else {
        panic!("no check");
    };
    args.model = MODEL.to_str().unwrap().into();
    let cells = cells(&args, Checkpoint::open(&MODEL)?.config().layers())?;
    let load = Load::new(258, args.prompt, args.tokens, args.seed);
    let run = |at, fault: Option<Fault>| {
        let mut settings = settings(&args, at);
        settings.fault = fault.map(|fault| (Rank(2), fault));
        run_cell(&MODEL, settings, at.threads, &load)
    };
    let (one, three) = (run(&cells[0], None)?, run(&cells[1], fault)?);
    compare(&one, &three, &cells[0], &cells[1])
}

#[test]
fn three_sound_ranks_equal_one() {
    three_against_one(None).unwrap();
}

#[test]
fn a_rank_that_lacks_a_layer_is_the_first_difference() {
    let error = three_against_one(Some(Fault::SkipLayer(2))).unwrap_err().to_string();
    assert!(error.starts_with("first difference: reply 0, "), "{error}");
    assert!(error.contains("in   layout 0:1,1:2,2:3, threads 1, chunk 16, streams 2"), "{error}");
}

#[test]
fn a_rank_that_forgets_a_generation_is_named() {
    let error = three_against_one(Some(Fault::DropGeneration)).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("OtherGeneration") && error.contains("rank 2"), "{error}");
}

/// A model without and one with recurrent layers, on a GPU whose driver rounds products before it
/// adds; nothing where there is no adapter.
#[cfg(feature = "gpu")]
#[test]
fn what_a_device_of_its_own_function_gives_is_named_and_compared() {
    if gpu::adapters().is_empty() {
        eprintln!("skipped: a device of its own function: no adapter of Vulkan or Metal here");
        return;
    }
    let qwen = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/tiny-qwen3_5/tiny-qwen3_5");
    for (path, states) in [(MODEL.as_path(), 0), (qwen.as_ref(), 2)] {
        let settings = |devices: &str, own| Settings {
            layout: Some(axes::placements(&["2".into()], layers(path), 1).unwrap()[0].to_string()),
            devices: devices.parse::<Devices>().unwrap().0,
            own_arith: own,
            context: Some(64),
            streams: 1,
            chunk: 16,
            defect: Some(gpu::Defect::Unfused),
            ..Settings::default()
        };
        let open = |devices: &str, own| Model::open(path, settings(devices, own)).unwrap();
        let refused = open("cpu|gpu:0", false).seat(Rank(1), 0, 1).err().unwrap().to_string();
        assert!(refused.contains("rule `fma` failed"), "{refused}");
        assert!(refused.contains("--allow-own-arith"), "{refused}");
        let placed = |devices| against::Placed::open(open(devices, true), 1).unwrap();
        let text = against::Text { prompt: 24, tokens: 8, seed: 1, states: vec![23, 31] };
        let mut reference = placed("cpu");
        let same = against::compare(&mut reference, &mut placed("cpu"), &text).unwrap();
        assert!(same.largest() == 0.0 && same.differing() == 0, "{same}");
        reference = placed("cpu");
        let mut own = placed("cpu|gpu:0");
        assert!(own.name.contains("arith: own, by rule `fma`"), "{}", own.name);
        let report = against::compare(&mut reference, &mut own, &text).unwrap();
        println!("{report}");
        assert!(report.largest() > 0.0 && report.largest() < 0.1, "{report}");
        let (positions, apart) = report.states();
        assert_eq!((positions, apart > 0.0), (states, states > 0), "{report}");
        assert!(report.to_string().contains("the same bits twice"), "{report}");
    }
}

#[cfg(feature = "gpu")]
#[test]
fn rings_of_cpu_and_gpu_equal_one_cpu_rank() {
    if gpu::adapters().is_empty() {
        eprintln!("skipped: rings of CPU and GPU: no adapter of Vulkan or Metal here");
        return;
    }
    let line = "baton check --layouts 1;3 --devices cpu,cpu|gpu:0,gpu:0|cpu --threads 1 \
                --chunks 16 --streams 4 --tokens 4 --prompt 20";
    let Command::Check(mut args) = Cli::parse_from(line.split_whitespace()).command else {
        panic!("no check");
    };
    args.model = MODEL.to_str().unwrap().into();
    run(&args).unwrap();
}

/// What a server's reply says of its arithmetic, with a GPU as above in the ring.
#[cfg(feature = "gpu")]
#[test]
fn a_ring_with_a_device_of_its_own_function_says_so() {
    if gpu::adapters().is_empty() {
        return;
    }
    let settings = Settings {
        layout: Some("0:1,1:3".into()),
        devices: "cpu|gpu:0".parse::<Devices>().unwrap().0,
        own_arith: true,
        context: Some(64),
        streams: 1,
        defect: Some(gpu::Defect::Unfused),
        ..Settings::default()
    };
    let load = Load::new(258, 8, 2, 1);
    let cell = Cell::start(&MODEL, settings, 1).unwrap();
    cell.run(load.run(cell.handle(), 1)).unwrap();
    let arith = cell.handle().facts().arith("1");
    let [health, reply] = served(&cell);
    cell.stop().unwrap();
    assert!(arith.starts_with("own, of rank 1 (") && arith.contains("rule `fma`"), "{arith}");
    assert_eq!(
        (&health["arith"], &reply["baton"]["arith"]),
        (&arith.clone().into(), &arith.into())
    );
    let device = health["ranks"][1]["device"].as_str().unwrap();
    assert!(device.ends_with("arith: own, by rule `fma`"), "{health}");
}

/// `/health` and a reply of a server before the cell's ring.
#[cfg(feature = "gpu")]
fn served(cell: &Cell) -> [serde_json::Value; 2] {
    let text = text::Text::from_checkpoint(&Checkpoint::open(&MODEL).unwrap()).unwrap();
    let app = api::App::new(cell.handle().clone(), text.into(), "own");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, asked) = tokio::sync::oneshot::channel::<()>();
    let stopped = async {
        let _ = asked.await;
    };
    let server = runtime.spawn(api::serve(listener, app, stopped, std::future::pending()));
    let health = ureq::get(format!("{url}/health")).call();
    let post = ureq::post(format!("{url}/v1/completions")).content_type("application/json");
    let reply = post.send(r#"{"model": "own", "prompt": "abc", "max_tokens": 2}"#);
    drop(stop);
    runtime.block_on(server).unwrap().unwrap();
    [health, reply].map(|answer| {
        let body = answer.unwrap().body_mut().read_to_string().unwrap();
        serde_json::from_str(&body).unwrap()
    })
}

fn layers(path: &Path) -> u32 {
    Checkpoint::open(path).unwrap().config().layers()
}
