//! Functions whose last bits differ between platforms.

use super::{File, Finding, source};

/// Crates that compute a reply's bytes.
const EXACT: &[&str] = &["arith", "backend", "cpu", "cuda", "gpu", "stage", "sched"];

/// Methods that the standard library takes from the platform.
const METHODS: &[&str] = &[
    "acos", "asin", "atan", "atan2", "cbrt", "cos", "cosh", "exp", "exp2", "exp_m1", "hypot", "ln",
    "ln_1p", "log", "log10", "log2", "powf", "powi", "sin", "sin_cos", "sinh", "tan", "tanh",
];

/// A defect that is planted to be found.
const PLANTED: &str = "crates/backend/src/scalar/planted.rs";

/// Calls of the platform's maths outside unit tests: f32 functions are arith's, f64 ones libm's.
pub fn platform(file: &File) -> Vec<Finding> {
    let exact = EXACT.iter().any(|name| file.path.starts_with(&format!("crates/{name}/src/")));
    if !exact || !file.is_rust() || file.path == PLANTED || file.path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let code = source::code(&file.text);
    let own = code.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut findings = Vec::new();
    for method in METHODS {
        for at in source::words(own, method) {
            let before = &own[..at];
            let called = own[at + method.len()..].starts_with('(')
                && (before.ends_with('.')
                    || before.ends_with("f32::")
                    || before.ends_with("f64::"));
            if called {
                let what = format!("`{method}` is the platform's: use arith's or libm's");
                findings.push(file.fault(source::line_of(own, at), what));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn the_platforms_exp_is_refused_where_bytes_are_made() {
        for call in ["x.exp()", "f32::exp(x)", "(-x)\n    .exp()", "x.powi(2)"] {
            let file = |name: &str| planted(&format!("crates/{name}/src/a.rs"), call);
            assert_eq!(platform(&file("cpu")).len(), 1, "{call}");
            assert!(platform(&file("api")).is_empty());
        }
    }

    #[test]
    fn arith_libm_comments_and_tests_pass() {
        let text = "exp(x); libm::exp(y); // x.exp()\n#[cfg(test)]\nmod tests { x.exp() }\n";
        assert!(platform(&planted("crates/arith/src/a.rs", text)).is_empty());
    }
}
