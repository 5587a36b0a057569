//! Passes the striping of directory rules to the PFS: for the directories when the node starts, for
//! files when they are created through it; tells where the stripes of a file are. Refusals are
//! logged once and cost nothing else.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use tidepool_pfs::{Layout, LayoutHints, LayoutOutcome, LowerFile, LowerStore, StripePart};
use tidepool_proto::admin::ExplainedStripe;
use tidepool_proto::config::{DirectoryRule, StripeHints};

/// Stripes that an explanation has.
const EXPLAINED_MAX: usize = 1024;

fn hints(stripe: &StripeHints) -> LayoutHints {
    LayoutHints {
        stripe_size_bytes: stripe.stripe_bytes,
        stripe_count: stripe.stripe_count,
        servers: stripe.stripe_servers.clone(),
    }
}

/// Applies the hints of `rules` to directories that exist; what was not done, one line each.
pub fn apply_to_directories(pfs: &dyn LowerStore, rules: &[DirectoryRule]) -> Vec<String> {
    let striped = rules.iter().filter(|rule| !rule.stripe.is_empty());
    striped.filter_map(|rule| apply_to_directory(pfs, &rule.path, &rule.stripe)).collect()
}

fn apply_to_directory(pfs: &dyn LowerStore, path: &Path, stripe: &StripeHints) -> Option<String> {
    let here = Path::new(".");
    let path = if path.as_os_str().is_empty() { here } else { path };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let why = match rustix::fs::openat(pfs.root_descriptor(), path, flags, Mode::empty()) {
        Err(error) => error.to_string(),
        Ok(directory) => {
            match pfs.apply_layout(std::os::fd::AsFd::as_fd(&directory), &hints(stripe)) {
                Ok(LayoutOutcome::Applied) => return None,
                Ok(LayoutOutcome::Partly(why) | LayoutOutcome::Ignored(why)) => why,
                Err(error) => error.to_string(),
            }
        }
    };
    Some(format!("striping of {}: {why}", path.display()))
}

/// The first stripes of a file of `size_bytes`.
pub fn explain(layout: &Layout, size_bytes: u64, block_bytes: u64) -> Vec<ExplainedStripe> {
    let stripe = |part: StripePart| ExplainedStripe {
        stripe: part.stripe,
        offset: part.offset,
        length: part.length,
        first_block: part.offset / block_bytes,
        server: part.server.or_else(|| part.server_index.map(|index| format!("#{index}"))),
    };
    layout.map(0, size_bytes, EXPLAINED_MAX).into_iter().map(stripe).collect()
}

static TOLD: AtomicBool = AtomicBool::new(false);

/// Applies the hints of `rule` to a file that was just created and has no bytes yet.
pub fn apply_to_new_file(pfs: &dyn LowerStore, lower: &dyn LowerFile, rule: &DirectoryRule) {
    if rule.stripe.is_empty() {
        return;
    }
    let outcome = pfs.apply_layout(lower.descriptor(), &hints(&rule.stripe));
    if !matches!(outcome, Ok(LayoutOutcome::Applied)) && !TOLD.swap(true, Ordering::Relaxed) {
        tracing::warn!(?outcome, "striping hints of new files are not in force");
    }
}
