"""The command line: one short file a command. Uses the public interface only."""
