//! Kernels as Metal takes them, without a Mac.

use baton_gpu::{Fma, Forms, Msl, Unit};

/// Every entry point of every unit, with constants that it is launched with.
const ENTRIES: [(Unit, &[&str]); 11] = [
    (Unit::Rows, &["add", "gate", "silu_mul", "rope", "gates"]),
    (Unit::Norm, &["rms", "head", "gated", "unit"]),
    (Unit::Quantise, &["quantise"]),
    (Unit::Linear, &["few", "many"]),
    (Unit::Floats, &["floats"]),
    (Unit::Embed, &["embed"]),
    (Unit::EmbedFloats, &["embed_floats"]),
    (Unit::KvWrite, &["kv_write"]),
    (Unit::Attention, &["attend", "merge"]),
    (Unit::Gdn, &["convolve", "tails", "delta"]),
    (Unit::Probe, &["probe"]),
];

#[test]
fn every_kernel_translates_to_metal_without_fast_math() {
    assert_eq!(ENTRIES.map(|(unit, _)| unit), Unit::ALL);
    // Metal has no f64.
    for forms in [Forms::DEVICE, Forms::CAREFUL] {
        assert_ne!(forms.fma, Fma::Wide);
        for (unit, entries) in ENTRIES {
            let source = unit.source(forms);
            assert_eq!(source.matches("@compute").count(), entries.len(), "{unit:?}");
            for &entry in entries {
                let msl = Msl::of(unit, forms, entry, &[])
                    .unwrap_or_else(|error| panic!("{unit:?}, {entry}: {error}"));
                held(&msl, &format!("{unit:?}, {entry}"));
            }
        }
    }
}

fn held(msl: &Msl, what: &str) {
    let text = &msl.text;
    assert!(text.starts_with("#pragma METAL fp math_mode(safe)\n"), "{what}: {text}");
    assert!(text.contains("#pragma METAL fp contract(off)\n"), "{what}: {text}");
    let begin = text.find(&format!("kernel void {}(", msl.entry)).expect(what);
    let end = begin + text[begin..].find(") {").expect(what);
    let arguments = &text[begin..end];
    // Memory of a workgroup is the kernel's own; buffers are numbered from the parameters on.
    assert!(!arguments.contains("threadgroup "), "{what}: {arguments}");
    assert!(arguments.contains("[[buffer(0)]]") || msl.params_bytes == 0, "{what}: {arguments}");
    for slot in 1..=msl.bindings.len() {
        assert!(arguments.contains(&format!("[[buffer({slot})]]")), "{what}: {arguments}");
    }
    // Sizes of buffers are passed on, but nothing reads them: wgpu would not bind them.
    assert!(!text.contains("sizes.size"), "{what}: {text}");
    assert!(msl.workgroup[0] > 0 && msl.workgroup[0] <= 256, "{what}: {:?}", msl.workgroup);
}

#[test]
fn memory_of_a_workgroup_is_declared_in_its_kernel() {
    let msl = Msl::of(Unit::Linear, Forms::CAREFUL, "few", &[("LANES", 16), ("ROWS", 1)]);
    let msl = msl.expect("a kernel");
    let body = msl.text.split("kernel void few").nth(1).expect("a kernel");
    assert_eq!(
        body.lines().filter(|line| line.starts_with("    threadgroup ")).count(),
        2,
        "{body}"
    );
    assert_eq!((msl.workgroup, msl.params_bytes), ([256, 1, 1], 72));
    assert_eq!(msl.bindings, [0, 1, 2, 3, 4, 5].map(|at| (at, at > 0)));
}
