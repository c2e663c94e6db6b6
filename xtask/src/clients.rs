//! Clients as PyPI and npm have them against rings of real processes, replies by many schemas, and
//! many streams with slow readers.

mod server;
mod tools;

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::step::Steps;
use server::Server;
use tools::Tools;

const WORLDS: [&str; 2] = ["1", "3"];
/// Tokens of a reply by schema.
const TOKENS_MAX: &str = "256";
/// Context of the ring that schemathesis asks, so that no reply is long.
const SHORT_CONTEXT: [&str; 2] = ["--context", "256"];
/// More open streams than run at once: the others wait, as they do by default, for a place.
const MANY: [&str; 2] = ["--queue", "512"];
/// Whatever schemathesis can check, but that every body of the right form is taken: a form does not
/// say what the context, the vocabulary and a grammar's compiler refuse.
const LEFT_OUT: &str = "positive_data_acceptance";

/// What is to be run.
struct Asked {
    model: String,
    /// Replies by schema; none where 0.
    structured: String,
    /// Seconds of many streams; none where 0.
    slow_s: String,
    /// Cases of each operation that schemathesis makes up; none where 0.
    cases: String,
    /// Whether the clients run.
    clients: bool,
}

impl Asked {
    fn read(arguments: &[String]) -> Result<Self> {
        let mut asked = Self {
            model: "baton-tiny".into(),
            structured: "2000".into(),
            slow_s: "0".into(),
            cases: "100".into(),
            clients: true,
        };
        for pair in arguments.chunks(2) {
            match pair {
                [name, value] if name == "--model" => asked.model.clone_from(value),
                [name, value] if name == "--structured" => asked.structured.clone_from(value),
                [name, value] if name == "--slow-s" => asked.slow_s.clone_from(value),
                [name, value] if name == "--cases" => asked.cases.clone_from(value),
                [name, value] if name == "--only" => {
                    let others = ["structured", "slow", "clients", "schemathesis"];
                    ensure!(others.contains(&value.as_str()), "--only takes one of {others:?}");
                    let keep = |part: &str, own: &mut String| {
                        if part != value {
                            *own = "0".into();
                        }
                    };
                    keep("structured", &mut asked.structured);
                    keep("schemathesis", &mut asked.cases);
                    asked.clients = value == "clients";
                    if value == "slow" && asked.slow_s == "0" {
                        asked.slow_s = "600".into();
                    }
                }
                _ => bail!(
                    "expected [--model MODEL] [--structured N] [--slow-s S] [--cases N] \
                     [--only clients|schemathesis|structured|slow]"
                ),
            }
        }
        Ok(asked)
    }
}

/// Runs the clients and schemathesis at world 1 and 3, whose replies must be the same, replies by
/// schema at world 1, and where asked for many streams at world 3. Ends with one line.
///
/// # Errors
/// A client that failed, a reply that is wrong, worlds that differ, a stall.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let asked = Asked::read(arguments)?;
    let root = steps.root().to_owned();
    let tools = Tools::install(steps, &root.join("target/clients"))?;
    let scripts = root.join("xtask/src/clients");
    let mut said = Vec::new();
    if asked.clients {
        said.push(both(&asked.model, |server| {
            let python = server.run(tools.python(&scripts.join("ring.py")), &[])?;
            let node = server.run(tools.node(&scripts.join("ring.mjs")), &[])?;
            Ok(format!("{python}; {node}"))
        })?);
    }
    if asked.cases != "0" {
        for world in WORLDS {
            let server = Server::start(&asked.model, world, &SHORT_CONTEXT)?;
            let found = schemathesis(&tools, &server, &asked.cases)?;
            said.push(format!("schemathesis at {world}: {found}"));
        }
    }
    if asked.structured != "0" {
        let server = Server::start(&asked.model, "1", &[])?;
        let script = tools.python(&scripts.join("structured.py"));
        said.push(server.run(script, &[&asked.structured, TOKENS_MAX])?);
    }
    if asked.slow_s != "0" {
        let server = Server::start(&asked.model, "3", &MANY)?;
        let script = tools.python(&scripts.join("slow.py"));
        said.push(server.run(script, &[&asked.slow_s, &server.id().to_string()])?);
    }
    println!("clients: {}: {}", asked.model, said.join("; "));
    Ok(())
}

/// What both worlds said, which must be the same.
fn both(model: &str, run: impl Fn(&Server) -> Result<String>) -> Result<String> {
    let mut said = Vec::new();
    for world in WORLDS {
        said.push(run(&Server::start(model, world, &[])?)?);
    }
    ensure!(said[0] == said[1], "world 1 said `{}`, world 3 `{}`", said[0], said[1]);
    Ok(format!("worlds 1 and 3: {}", said[0]))
}

/// Has schemathesis ask a server what its own description allows and forbids; how many cases.
fn schemathesis(tools: &Tools, server: &Server, cases: &str) -> Result<String> {
    let mut command: Command = tools.schemathesis();
    command.args(["run", &format!("{}/openapi.json", server.url())]);
    command.args(["--max-examples", cases, "--seed", "1", "--exclude-checks", LEFT_OUT]);
    command.args(["--suppress-health-check", "all", "--warnings", "off", "--no-color"]);
    command.args(["--continue-on-failure", "--no-shrink"]);
    let output = command.output().context("can't run schemathesis")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let counted = text.lines().rev().find(|line| line.contains("generated"));
    let counted = counted.unwrap_or("no count of cases").trim().to_owned();
    println!("{counted}");
    Ok(counted)
}
