//! The GPU backend against the reference where there is a driver, and what is said where there is
//! none.
#![allow(clippy::unwrap_used, reason = "tests")]

mod metal;

use std::io::Write;

use backend::Backend;
use backend::conformance::{self, Level};
use baton_gpu::{Defect, Forms, Gpu, GpuError, Verdict, adapters};

/// A GPU, or a line that says what was skipped, past the harness's capture.
fn gpu(test: &str) -> Option<Gpu> {
    match Gpu::open(0, None) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            let line = format!("skipped: {test}: {error}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            None
        }
    }
}

#[test]
fn the_conformance_suite_passes_on_the_gpu() {
    let Some(gpu) = gpu("the conformance suite on a GPU") else { return };
    println!("{}", gpu.device());
    for part in 0..conformance::PARTS {
        let start = std::time::Instant::now();
        let report = conformance::run_part(&gpu, Level::Quick, part);
        println!("part {part}: {report} in {:?}", start.elapsed());
        assert!(report.ok(), "part {part}: {report}");
    }
    assert!(gpu.failure().is_none(), "{:?}", gpu.failure());
}

#[test]
fn a_device_that_is_gone_is_named_and_gives_nothing() {
    let Some(gpu) = gpu("a device that is gone") else { return };
    let (left, mut rows) = (gpu.rows(4, 64).unwrap(), gpu.rows(4, 64).unwrap());
    gpu.upload(&[1.0; 64], &mut rows);
    assert!(gpu.failure().is_none());
    gpu.fail();
    gpu.silu_mul(&left, &left, 4, &mut rows);
    let mut data = [0.0; 64];
    gpu.download(&rows, 0, &mut data);
    let words = gpu.failure().unwrap().to_string();
    assert!(words.contains("gpu:0 over") && words.contains(" failed: "), "{words}");
    assert!(words.contains("must be started again") && !words.contains('\n'), "{words}");
    assert_eq!(data, [0.0; 64]);
    assert!(gpu.rows(4, 64).is_err(), "memory of a device that is gone");
}

#[test]
fn forms_that_need_nothing_of_a_device_hold_everywhere() {
    if gpu("careful forms on a GPU").is_none() {
        return;
    }
    let careful = Gpu::in_forms(0, Forms::CAREFUL).unwrap();
    assert_eq!(*careful.verdict(), Verdict::One(Forms::CAREFUL));
    let report = conformance::run_part(&careful, Level::Quick, 3);
    assert!(report.ok(), "{report}");
}

#[test]
fn the_probe_names_the_rule_that_a_driver_breaks() {
    if gpu("faults planted in the probe").is_none() {
        return;
    }
    for defect in Defect::ALL {
        let Some(rule) = defect.rule() else { continue };
        let gpu = Gpu::with_defect(0, defect, true).unwrap();
        let Verdict::Own { rule: found, case } = gpu.verdict() else {
            panic!("{defect:?} was not found")
        };
        println!("{defect:?}: {found}: {case}");
        assert_eq!(*found, rule);
        assert!(gpu.device().contains(rule), "{}", gpu.device());
    }
}

#[test]
fn the_suite_catches_what_the_probe_does_not_see() {
    if gpu("faults planted in kernels").is_none() {
        return;
    }
    for (defect, part) in
        [(Defect::UnfusedLinear, 1), (Defect::SwappedTree, 1), (Defect::ContractedScore, 2)]
    {
        let gpu = Gpu::with_defect(0, defect, true).unwrap();
        assert!(matches!(gpu.verdict(), Verdict::One(_)), "{defect:?}: {:?}", gpu.verdict());
        let report = conformance::run_part_to_failure(&gpu, Level::Quick, part);
        println!("{defect:?}: {report}");
        assert!(report.failed > 0, "{defect:?} was not found");
    }
}

#[test]
fn attention_gives_the_same_bytes_by_chunks_where_tiles_would_leave_too_much() {
    let Some(gpu) = gpu("attention by chunks on a GPU") else { return };
    gpu.limit_parts(0);
    let report = conformance::run_part(&gpu, Level::Quick, 2);
    assert!(report.ok(), "{report}");
    // By tiles the same fault is none, so it is chunks that were seen.
    let planted = Gpu::with_defect(0, Defect::OverlappingChunks, true).unwrap();
    assert!(conformance::run_part(&planted, Level::Quick, 2).ok());
    planted.limit_parts(0);
    let report = conformance::run_part_to_failure(&planted, Level::Quick, 2);
    println!("by chunks: {report}");
    assert!(report.failed > 0, "chunks are not what was run");
}

#[test]
fn a_round_is_one_command_buffer_and_one_wait() {
    let Some(gpu) = gpu("command buffers of a GPU") else { return };
    let (mut x, mut y) = (gpu.rows(4, 64).unwrap(), gpu.rows(4, 64).unwrap());
    let mut data = [0.0; 256];
    let before = gpu.tally();
    gpu.upload(&[1.0; 256], &mut x);
    for _ in 0..50 {
        gpu.add(&mut y, &x, 4);
        gpu.silu_mul(&y, &y, 4, &mut x);
    }
    gpu.download(&x, 0, &mut data);
    let after = gpu.tally();
    assert_eq!(after.launches - before.launches, 100);
    assert_eq!((after.submits - before.submits, after.waits - before.waits), (1, 1));
}

#[test]
fn pipelines_are_kept_and_what_is_no_cache_is_passed_over() {
    let Some(gpu) = gpu("pipelines that are kept") else { return };
    drop(gpu);
    let folder = std::env::temp_dir().join(format!("baton-pipelines-{}", std::process::id()));
    let sum = || {
        let gpu = Gpu::open(0, Some(&folder)).unwrap();
        let (mut x, mut y) = (gpu.rows(1, 64).unwrap(), gpu.rows(1, 64).unwrap());
        let mut data = [0.0; 64];
        gpu.upload(&[1.5; 64], &mut x);
        // The second round builds nothing, so that what the first built is written.
        for _ in 0..2 {
            gpu.add(&mut y, &x, 1);
            gpu.download(&y, 0, &mut data);
        }
        assert!(gpu.failure().is_none(), "{:?}", gpu.failure());
        data
    };
    let first = sum();
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    assert!(file.metadata().unwrap().len() > 0, "{file:?}");
    assert_eq!(sum(), first);
    std::fs::write(file.path(), "no cache").unwrap();
    assert_eq!(sum(), first);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_adapter_that_is_not_there_is_told_in_one_line() {
    let Err(error @ GpuError::NoAdapter { .. }) = Gpu::open(4096, None) else {
        panic!("4097 adapters")
    };
    let line = error.to_string();
    assert!(line.contains("gpu:4096: this machine has") && line.contains("--device cpu"), "{line}");
    assert!(!line.contains('\n'), "{line}");
    println!("{:?}", adapters());
}
