//! What a rank, or a member of its group, takes of a machine's memory.

use anyhow::{Result, ensure};
use api::PromptPair;
use arith::base::Rank;
use stage::model::Need;
use wire::control::Shapes;

use super::{MEMORY_FLOOR_BYTES, Model};

impl Model {
    /// What `member` of `rank` takes once it is prepared for `shapes`.
    pub(super) fn need(&self, rank: Rank, member: usize, shapes: &Shapes) -> Result<Need> {
        let (config, share) = (self.stage_config(rank)?, self.share_of(rank, member));
        let need = stage::share_need_bytes(&self.checkpoint, &config, share, shapes)?;
        let twin_bytes = if self.settings.prompt_pair { need.twin_bytes } else { 0 };
        Ok(Need { twin_bytes, ..need })
    }

    /// Bytes of a KV page of `member` of `rank`, over its layers; 0 where none of them has keys.
    pub(super) fn page_bytes(&self, rank: Rank, member: usize) -> Result<u64> {
        let more = Shapes { pages: self.shapes.pages + 1, ..self.shapes };
        let bytes = |shapes| Ok::<_, anyhow::Error>(self.need(rank, member, shapes)?.kv_bytes);
        Ok(bytes(&more)? - bytes(&self.shapes)?)
    }

    /// What prompts in pairs cost the member that loses most KV pages by them; none where no prompt
    /// goes in pairs.
    ///
    /// # Errors
    /// A rank that the model does not have.
    pub fn prompt_pair(&self) -> Result<Option<PromptPair>> {
        let mut most: Option<PromptPair> = None;
        for (rank, member) in self.shares() {
            let twin_bytes = self.need(rank, member, &self.shapes)?.twin_bytes;
            let page_bytes = self.page_bytes(rank, member)?.max(1);
            let kv_pages_lost = twin_bytes.div_ceil(page_bytes);
            if twin_bytes > 0 && most.is_none_or(|most| kv_pages_lost > most.kv_pages_lost) {
                let rows_min = stage::PAIR_ROWS_MIN;
                most = Some(PromptPair { rows_min, twin_bytes, kv_pages_lost });
            }
        }
        Ok(most)
    }

    /// Refuses what `shares`, members of ranks, all on one device, can't hold together.
    ///
    /// # Errors
    /// Too little memory, with both numbers.
    pub fn check_memory(&self, shares: &[(Rank, usize)], free_bytes: Option<u64>) -> Result<()> {
        let (mut need, mut twins) = (MEMORY_FLOOR_BYTES, 0);
        for &(rank, member) in shares {
            let (config, share) = (self.stage_config(rank)?, self.share_of(rank, member));
            let own = self.need(rank, member, &self.shapes)?;
            need = need.saturating_add(own.total_bytes());
            twins += own.twin_bytes;
            if self.settings.prompt_cache_gib.is_some() {
                need = need.saturating_add(self.keep_bytes_max);
            }
            if self.settings.drafters.mtp && rank.0 == 0 && member == 0 {
                let (checkpoint, shapes) = (&self.checkpoint, &self.shapes);
                need += stage::share_draft_need_bytes(checkpoint, &config, share, shapes)?;
            }
        }
        let (Some(free), [(first, member), ..]) = (free_bytes, shares) else {
            return Ok(());
        };
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let last = shares.last().map_or(*first, |(rank, _)| *rank);
        let who = match (first == &last, shares.len(), self.layout.group(*first)) {
            (true, 1, Some(_)) => format!("rank {first}, member {member}"),
            (true, ..) => format!("rank {first}"),
            _ => format!("ranks {first}..{}", last.0 + 1),
        };
        let pairs = match twins {
            0 => String::new(),
            _ => format!("; --prompt-pair off saves {} MiB", mib(twins)),
        };
        ensure!(
            need <= free,
            "{who}: layers {}..{} need {} MiB with a context of {} and {} streams, {} MiB are free: \
             lower --context or --streams, or give this machine fewer layers{pairs}",
            self.range(*first)?.start,
            self.range(last)?.end,
            mib(need),
            self.shapes.context_max,
            self.shapes.streams_max,
            mib(free)
        );
        Ok(())
    }
}
