//! Node expressions as Slurm writes them: `n[01-10,12]`, `rack[1-2]n[01-04]`.
