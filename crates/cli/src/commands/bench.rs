//! x
use crate::arguments::BenchArguments;
use crate::exit::Outcome;
use tidepool_proto::Result;
pub fn bench(_a: &BenchArguments) -> Result<Outcome> {
    unimplemented!()
}
