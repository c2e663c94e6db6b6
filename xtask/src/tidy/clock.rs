//! The wall clock, which jumps.

use super::{File, Finding, source};

/// Crates that time things, or decide by time: by a clock that only goes on.
const STEADY: &[&str] = &["backend", "cpu", "stage", "wire", "ring", "sched", "node"];

/// Uses of the wall clock.
pub fn wall(file: &File) -> Vec<Finding> {
    let steady = STEADY.iter().any(|name| file.path.starts_with(&format!("crates/{name}/src/")));
    if !steady || !file.is_rust() {
        return Vec::new();
    }
    let code = source::code(&file.text);
    let found = source::words(&code, "SystemTime");
    let what = "`SystemTime` jumps: use `Instant`";
    found.map(|at| file.fault(source::line_of(&code, at), what)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn the_wall_clock_is_refused_where_time_decides() {
        let text = "// SystemTime\nlet now = std::time::SystemTime::now();\n";
        let found = wall(&planted("crates/ring/src/a.rs", text));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        assert!(wall(&planted("crates/api/src/a.rs", text)).is_empty());
    }
}
