//! What plans were worth.

use std::fmt;

use crate::race_ring::report::median;

use super::placed::Figures;

/// A placement, predicted and measured.
#[derive(Clone, Debug)]
pub struct Row {
    /// Who holds what.
    pub placement: String,
    /// As the plan says.
    pub predicted: Figures,
    /// As it was.
    pub measured: Figures,
}

/// Placements of one scenario, the chosen one first.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Model, machines, cable and objective.
    pub name: String,
    /// Whether the prompt's time counts, and not a token's.
    pub prompt: bool,
    /// The placements.
    pub rows: Vec<Row>,
}

impl Row {
    /// How far off decode and prompt are, of the measured speed.
    fn speed_errors(&self) -> [f64; 2] {
        let (told, found) = (&self.predicted, &self.measured);
        // Of speeds: what is predicted over what was.
        [found.decode_s / told.decode_s - 1.0, found.prompt_s / told.prompt_s - 1.0]
    }

    fn memory_errors(&self) -> impl Iterator<Item = f64> {
        self.predicted
            .memory
            .iter()
            .zip(&self.measured.memory)
            .map(|(told, found)| told / found - 1.0)
    }
}

impl Scenario {
    fn time(&self, row: &Row) -> f64 {
        if self.prompt { row.measured.prompt_s } else { row.measured.decode_s }
    }

    /// The chosen placement's time over the best one's.
    pub fn behind(&self) -> f64 {
        let best = self.rows.iter().map(|row| self.time(row)).fold(f64::INFINITY, f64::min);
        self.rows.first().map_or(f64::NAN, |chosen| self.time(chosen) / best)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: the chosen is {:.3} of the best", self.name, self.behind())?;
        for row in &self.rows {
            let [decode, prompt] = row.speed_errors().map(|error| error * 100.0);
            let memory: Vec<String> =
                row.memory_errors().map(|error| format!("{:+.1} %", error * 100.0)).collect();
            writeln!(
                f,
                "| {} | {:.2} of {:.2} ms | {decode:+.1} % | {:.3} of {:.3} s | {prompt:+.1} % | {} |",
                row.placement,
                row.predicted.decode_s * 1e3,
                row.measured.decode_s * 1e3,
                row.predicted.prompt_s,
                row.measured.prompt_s,
                memory.join(", ")
            )?;
        }
        Ok(())
    }
}

/// What each rank of a scenario was told to hold and holds, where nothing was timed.
pub fn memory(scenario: &Scenario) -> String {
    let mib = |bytes: &f64| format!("{:.1}", bytes / f64::from(1 << 20));
    let mut text = format!("{}\n", scenario.name);
    for row in &scenario.rows {
        let all = row.predicted.memory.iter().zip(&row.measured.memory);
        let ranks: Vec<String> = all
            .zip(row.memory_errors())
            .map(|((told, found), error)| {
                format!("{} of {} MiB, {:+.1} %", mib(told), mib(found), error * 100.0)
            })
            .collect();
        text += &format!("| {} | {} |\n", row.placement, ranks.join(" | "));
    }
    text
}

/// How far off memory is, over all ranks, where nothing was timed.
pub fn memory_summary(scenarios: &[Scenario]) -> String {
    let rows = || scenarios.iter().flat_map(|scenario| &scenario.rows);
    let errors: Vec<f64> =
        rows().flat_map(Row::memory_errors).map(|error| error.abs() * 100.0).collect();
    format!(
        "race-plan: {} placements weighed: memory off by {:.1} % in the median, {:.1} % at worst",
        rows().count(),
        median(&errors),
        errors.iter().copied().fold(0.0, f64::max)
    )
}

/// The figures that count, over all scenarios.
pub fn summary(scenarios: &[Scenario]) -> String {
    let rows = || scenarios.iter().flat_map(|scenario| &scenario.rows);
    let of = |which: usize| -> Vec<f64> {
        rows().map(|row| row.speed_errors()[which].abs() * 100.0).collect()
    };
    let memory: Vec<f64> =
        rows().flat_map(Row::memory_errors).map(|error| error.abs() * 100.0).collect();
    let worst = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
    let (decode, prompt) = (of(0), of(1));
    let speeds = [&decode[..], &prompt[..]].concat();
    let good = scenarios.iter().filter(|scenario| scenario.behind() <= 1.05).count();
    format!(
        "race-plan: {} placements: speed off by {:.1} % in the median, {:.1} % at worst (decode \
         {:.1}, {:.1}; prompt {:.1}, {:.1}), memory by {:.1} % at worst; chosen within 5 % of the \
         best in {good} of {} scenarios",
        rows().count(),
        median(&speeds),
        worst(&speeds),
        median(&decode),
        worst(&decode),
        median(&prompt),
        worst(&prompt),
        worst(&memory),
        scenarios.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(predicted: [f64; 3], measured: [f64; 3]) -> Row {
        let figures = |[decode_s, prompt_s, memory]: [f64; 3]| Figures {
            decode_s,
            prompt_s,
            memory: vec![memory],
        };
        let placement = "a (0:8)".into();
        Row { placement, predicted: figures(predicted), measured: figures(measured) }
    }

    #[test]
    fn a_summary_has_medians_worsts_and_how_often_the_choice_was_right() {
        let first = row([1.0, 2.0, 100.0], [1.1, 2.0, 102.0]);
        let second = row([1.0, 1.0, 100.0], [1.0, 1.3, 100.0]);
        let name = || "made".to_owned();
        let good =
            Scenario { name: name(), prompt: false, rows: vec![second.clone(), first.clone()] };
        let bad = Scenario { name: name(), prompt: true, rows: vec![first, second] };
        assert!((good.behind() - 1.0).abs() < 1e-9 && (bad.behind() - 2.0 / 1.3).abs() < 1e-9);
        let text = summary(&[good, bad]);
        assert!(text.contains("4 placements") && text.contains("30.0 % at worst"), "{text}");
        assert!(text.contains("memory by 2.0 % at worst") && text.contains("in 1 of 2"), "{text}");
    }
}
