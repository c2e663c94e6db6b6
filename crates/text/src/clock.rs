//! `strftime` over UTC, for templates that print today's date.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The present moment in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Year, month (1-12), day (1-31) of a day since 1970-01-01, by counting years from March in
/// eras of 400 years.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// Formats `seconds` since 1970 in UTC. Knows `%Y %y %m %d %B %b %A %a %H %I %M %S %p %F %T %%` and
/// a `-` after the percent sign that drops the padding; others stay as they are.
pub(crate) fn strftime(format: &str, seconds: u64) -> String {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let field = code.and_then(|code| field(code, seconds));
        match (field, code) {
            (Some(text), _) if bare => {
                let trimmed = text.trim_start_matches('0');
                out.push_str(if trimmed.is_empty() { "0" } else { trimmed });
            }
            (Some(text), _) => out.push_str(&text),
            (None, code) => {
                out.push('%');
                out.extend(bare.then_some('-'));
                out.extend(code);
            }
        }
    }
    out
}

/// One field of a format.
fn field(code: char, seconds: u64) -> Option<String> {
    let (days, clock) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (clock / 3_600, clock / 60 % 60, clock % 60);
    let weekday = DAYS[((days + 4) % 7) as usize];
    let month_name = MONTHS[(month - 1) as usize];
    let two = |n: u64| format!("{n:02}");
    Some(match code {
        'Y' => year.to_string(),
        'y' => two(year % 100),
        'm' => two(month),
        'd' => two(day),
        'B' => month_name.to_owned(),
        'b' => month_name[..3].to_owned(),
        'A' => weekday.to_owned(),
        'a' => weekday[..3].to_owned(),
        'H' => two(hour),
        'I' => two((hour + 11) % 12 + 1),
        'M' => two(minute),
        'S' => two(second),
        'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
        'F' => format!("{year}-{month:02}-{day:02}"),
        'T' => format!("{hour:02}:{minute:02}:{second:02}"),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let all = "%A %a %d %B %b %Y %y %m %F %H:%M:%S %T %I %p %% %-d %-m %q %";
        assert_eq!(
            strftime(all, 951_782_399),
            "Monday Mon 28 February Feb 2000 00 02 2000-02-28 23:59:59 23:59:59 11 PM % 28 2 %q %"
        );
        assert_eq!(strftime("%F %a", 951_782_400), "2000-02-29 Tue");
        assert_eq!(strftime("%F %a %-H", 1_804_032_000), "2027-03-03 Wed 0");
        assert_eq!(strftime("%F %A %I", 0), "1970-01-01 Thursday 12");
        assert_eq!(strftime("%F", 4_107_542_400), "2100-03-01");
    }
}
