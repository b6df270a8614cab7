//! The report from outside: made-up run directories in, verdicts, tables and pages out.

mod common;
mod compare;
mod verdict;
