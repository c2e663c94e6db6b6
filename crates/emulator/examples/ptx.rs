//! Compiles every kernel of PTX files: `ptx CACHE FILE...` says what is not emulated.

use std::path::Path;
use std::time::Instant;

use baton_emulator::Module;

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let cache = args.next().ok_or("give a folder and PTX files")?;
    for path in args {
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        let module = Module::load(&text, Path::new(&cache))?;
        for name in module.names() {
            let begun = Instant::now();
            let Some(kernel) = module.kernel(name) else { continue };
            match kernel.compile() {
                Ok(()) => println!("{name}: {:.2?}", begun.elapsed()),
                Err(what) => println!("{name}: {what}"),
            }
        }
    }
    Ok(())
}
