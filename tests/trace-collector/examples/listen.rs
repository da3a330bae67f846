//! A collector to look at: takes spans on a free port, which it prints, and prints all spans as
//! trees when its stdin ends.

use std::io::{self, Write as _};

use lockstep_trace_collector::{Collector, tree};

fn main() -> io::Result<()> {
    let collector = Collector::start();
    writeln!(io::stdout(), "{}", collector.endpoint())?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    write!(io::stdout(), "{}", tree(&collector.spans()))
}
