//! What a request gives on one stage alone, with no ring, no scheduler and no company.

use arith::base::{Generation, StreamId};
use arith::sample::draw;
use sched::{Finish, Request};
use sha2::{Digest, Sha256};
use stage::{Engine, Fake, Input, Shapes};
use wire::plan::{Entry, Mode, Op, Plan, Want};

use crate::setting::{LAYERS, model};

/// A reply.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Reply tokens, without a stop token.
    pub tokens: Vec<u32>,
    /// Why it ends there.
    pub finish: Finish,
    /// Of the logits that tokens were drawn from.
    pub sha: [u8; 32],
    /// Of all prompt rows.
    pub prompt_logits: Vec<f32>,
}

/// The reply to a request that fits into `context_max` positions.
pub fn answer(request: &Request, context_max: u32) -> Answer {
    let mut stage = Fake::new(model(0..LAYERS, true));
    let shapes = Shapes {
        chunk_rows_max: context_max,
        round_rows_max: context_max,
        streams_max: 1,
        context_max,
        pages: context_max.div_ceil(64),
    };
    stage.prepare(&shapes).expect("a fake stage has room");
    let (mut plan, mut generation) = (Plan::default(), 0);
    let (mut rows, mut logits) = (Vec::new(), Vec::new());
    let mut tokens = request.prompt.clone();
    let (mut done, mut last) = (0, 0);
    let most = (tokens.len() as u32).saturating_add(request.max_tokens.max(1)).min(context_max);
    let mut sha = Sha256::new();
    let mut answer =
        Answer { tokens: vec![], finish: Finish::Length, sha: [0; 32], prompt_logits: vec![] };
    while answer.finish != Finish::Stop && (tokens.len() as u32) < most {
        let new = tokens.len() as u32 - done;
        plan.mode = Mode::Prompt;
        plan.entries = vec![Entry {
            id: StreamId(0),
            op: if done == 0 { Op::Open } else { Op::Continue },
            want: Want::All,
            first: done,
            rows: new,
            accepted: last,
            resume: 0,
            generation: Generation(generation),
            parents: None,
            tokens: None,
        }];
        stage.step(&plan, Input::Tokens(&tokens[done as usize..]), &mut rows).expect("it fits");
        stage.logits(&rows, &mut logits).expect("a fake head");
        if done == 0 {
            answer.prompt_logits.clone_from(&logits);
        }
        (done, last, generation) = (done + new, new, generation + 1);
        let vocab = stage.vocab();
        let row = &logits[logits.len() - vocab..];
        row.iter().for_each(|x| sha.update(x.to_le_bytes()));
        let token = draw(row, &request.sampling, done);
        if request.stop_tokens.contains(&token) {
            answer.finish = Finish::Stop;
        } else {
            tokens.push(token);
            answer.tokens.push(token);
        }
    }
    answer.sha = sha.finalize().into();
    answer
}
