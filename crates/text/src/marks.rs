//! Where the messages of a rendered prompt start.

use serde_json::{Map, Value, json};

use crate::Text;

/// How a template begins a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The special token that every message begins with.
    token: u32,
    /// Whether a prompt's end, where the reply begins, is also the beginning of that reply in a
    /// later prompt.
    stays: bool,
}

impl Text {
    /// Positions in a prompt at which its messages start, ascending from 1: where the special token
    /// stands that the template begins each with. Empty where it has none. The last one, the head
    /// of the reply to come, counts only where a later prompt would not go on from its end.
    pub fn message_starts(&self, prompt: &[u32]) -> Vec<u32> {
        let Some(header) = *self.marks.get_or_init(|| self.header()) else { return Vec::new() };
        let starts = prompt.iter().enumerate().skip(1).filter(|(_, id)| **id == header.token);
        let mut starts: Vec<u32> = starts.map(|(at, _)| at as u32).collect();
        if header.stays {
            starts.pop();
        }
        starts
    }

    fn header(&self) -> Option<Header> {
        let user = json!({"role": "user", "content": "a"});
        let reply = json!({"role": "assistant", "content": "b"});
        let ids = |messages: &[Value], is_prompt| {
            self.encode(&self.render(messages, is_prompt, &Map::new()).ok()?).ok()
        };
        let alone = std::slice::from_ref(&user);
        let (prompt, bare) = (ids(alone, true)?, ids(alone, false)?);
        let head = prompt.strip_prefix(bare.as_slice())?;
        let token = *head.first().filter(|id| self.is_control(**id))?;
        let later = ids(&[user.clone(), reply, user.clone()], true)?;
        Some(Header { token, stays: later.starts_with(&prompt) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn prompt(text: &Text) -> Vec<u32> {
        let message = |role: &str| json!({"role": role, "content": "hello"});
        let messages = ["system", "user", "assistant", "user"].map(message);
        text.encode(&text.render(&messages, true, &Map::new()).unwrap()).unwrap()
    }

    #[test]
    fn messages_start_at_their_special_token() {
        let text = Text::byte_level();
        let prompt = prompt(&text);
        let starts = text.message_starts(&prompt);
        assert_eq!(starts.len(), 3, "the first is at 0, the reply's own head stays");
        assert!(starts.iter().all(|&at| prompt[at as usize] == 256));
        assert!(text.message_starts(&[1, 2, 3]).is_empty());
    }

    #[test]
    fn a_head_that_history_does_not_keep_is_a_mark_of_its_own() {
        let mut text = Text::byte_level();
        let chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
                      {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\
                      {% endif %}";
        text.set_template(chatml).unwrap();
        let prompt = prompt(&text);
        let starts = text.message_starts(&prompt);
        assert_eq!(starts.len(), 4);
        assert_eq!(prompt.len() as u32 - starts[3], 19);
    }

    #[test]
    fn a_template_without_special_tokens_marks_nothing() {
        let mut text = Text::byte_level();
        let plain = "{% for m in messages %}{{ m.content }}{% endfor %}\
                     {% if add_generation_prompt %}:{% endif %}";
        text.set_template(plain).unwrap();
        let prompt = prompt(&text);
        assert!(text.message_starts(&prompt).is_empty());
    }
}
