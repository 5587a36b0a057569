//! x
use crate::arguments::TopArguments;
use crate::exit::Outcome;
use tidepool_proto::Result;
pub fn top(_a: &TopArguments) -> Result<Outcome> {
    unimplemented!()
}
