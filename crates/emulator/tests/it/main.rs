//! Kernels from PTX written by hand: what the card's instructions give, and what it forbids;
//! and the driver's functions, called as C code calls them.

mod collectives;
mod driver;
mod faults;
mod hopper;
mod nccl;
mod values;

use std::path::PathBuf;
use std::sync::Arc;

use baton_emulator::Module;

/// A module of one kernel `test`, whose only parameter is where `data` lies.
fn module(body: &str) -> Arc<Module> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 memory[];\n\
         .visible .entry test(\n.param .u64 test_param_0\n)\n{{\n\
         .reg .pred %p<10>; .reg .b16 %rs<10>; .reg .b32 %r<40>; .reg .b64 %rd<10>;\n\
         .reg .f32 %f<20>;\n\
         ld.param.u64 %rd1, [test_param_0];\nmov.u32 %r1, %tid.x;\n\
         mul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\n{body}\nret;\n}}\n"
    );
    Module::load(&text, &cache()).expect("a text that is read")
}

fn cache() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("emulator")
}

/// What `data` holds after a block of so many threads; each thread's word is at `%rd3`.
fn run(body: &str, threads: u32, data: &mut [u32]) -> Result<(), String> {
    launch(body, threads, 256, data)
}

/// With so many bytes of shared memory.
fn launch(body: &str, threads: u32, shared: u32, data: &mut [u32]) -> Result<(), String> {
    let params = (data.as_mut_ptr() as u64).to_le_bytes();
    let kernel = module(body).kernel("test").expect("the kernel");
    kernel.launch([1, 1, 1], [threads, 1, 1], shared, &params)
}
