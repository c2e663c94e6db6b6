//! Faults on rings: the whole tables, and a siege.

use anyhow::{Context, Result, bail};

use crate::step::{Steps, cargo};

/// A test that is too long for `cargo xtask test`.
struct Long {
    name: &'static str,
    package: &'static str,
    binary: &'static str,
    test: &'static str,
}

/// Each ends with a line of its own.
const TABLES: [Long; 3] = [
    Long {
        name: "cancels",
        package: "baton-ring",
        binary: "rounds",
        test: "cancels::a_thousand_clients_leave_at_random_points",
    },
    Long {
        name: "weathers",
        package: "baton",
        binary: "it",
        test: "weather::every_weather_before_every_rank",
    },
    Long {
        name: "faults",
        package: "baton",
        binary: "it",
        test: "table::every_fault_in_every_phase_at_every_rank",
    },
];

/// Nodes that die, come back and join.
const CHURN: Long = Long {
    name: "churn",
    package: "baton",
    binary: "it",
    test: "churn::a_user_of_three_nodes_lives_through_all_of_it",
};

/// Faults at random under load.
const SIEGE: Long = Long {
    name: "siege",
    package: "baton",
    binary: "it",
    test: "siege::half_an_hour_of_faults_under_load",
};

/// Runs a thousand cancels, every weather, and every fault in every phase at every rank, which
/// takes about a quarter of an hour; with `--loop-s SECONDS` a siege of that length instead, with
/// `--only NAME` one of them.
///
/// # Errors
/// A cell that shows anything else than it must, or too late.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    match arguments {
        [] => TABLES.iter().try_for_each(|table| long(steps, table, None)),
        [flag, name] if flag == "--only" => {
            let table = TABLES.iter().find(|table| table.name == name);
            let names = || TABLES.map(|table| table.name).join(", ");
            let table = table.with_context(|| format!("--only {name}: one of {}", names()))?;
            long(steps, table, None)
        }
        [flag, seconds] if flag == "--loop-s" => {
            let number: u32 = seconds.parse().with_context(|| format!("--loop-s {seconds}"))?;
            long(steps, &SIEGE, Some(number))
        }
        other => bail!("faults: found {other:?}, expected nothing, --only NAME or --loop-s N"),
    }
}

/// The life of a head and three nodes, which takes a minute and a half.
///
/// # Errors
/// A reply with other bytes, one that broke without need, or anything left running.
pub fn churn(steps: &mut Steps) -> Result<()> {
    long(steps, &CHURN, None)
}

fn long(steps: &mut Steps, long: &Long, seconds: Option<u32>) -> Result<()> {
    let mut command = cargo(&["test", "--quiet", "--locked", "--package", long.package]);
    command.args(["--test", long.binary, "--", "--ignored", "--exact", long.test, "--nocapture"]);
    command.envs(seconds.map(|seconds| ("BATON_SIEGE_S", seconds.to_string())));
    steps.run(long.name, &mut command)
}
