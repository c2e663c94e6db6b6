//! Kernels as Metal takes them, without a Mac.

use baton_gpu::{Fma, Forms, Unit};
use naga::back::pipeline_constants::process_overrides;
use naga::back::{PipelineConstants, msl};
use naga::valid::{Capabilities, ValidationFlags, Validator};

#[test]
fn every_kernel_translates_to_metal() {
    // Metal has no f64.
    for forms in [Forms::DEVICE, Forms::CAREFUL] {
        assert_ne!(forms.fma, Fma::Wide);
        for unit in Unit::ALL {
            let source = unit.source(forms);
            let module = naga::front::wgsl::parse_str(&source)
                .unwrap_or_else(|error| panic!("{unit:?}: {}", error.emit_to_string(&source)));
            let capabilities = Capabilities::IMMEDIATES;
            let info = Validator::new(ValidationFlags::all(), capabilities)
                .validate(&module)
                .unwrap_or_else(|error| panic!("{unit:?}: {error:?}"));
            let options = msl::Options {
                lang_version: (2, 4),
                fake_missing_bindings: true,
                ..Default::default()
            };
            let (module, info) =
                process_overrides(&module, &info, None, &PipelineConstants::default())
                    .unwrap_or_else(|error| panic!("{unit:?}: {error}"));
            let (text, _) =
                msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
                    .unwrap_or_else(|error| panic!("{unit:?}: {error}"));
            for entry in &module.entry_points {
                assert!(text.contains(&entry.name), "{unit:?}: {}", entry.name);
            }
        }
    }
}
