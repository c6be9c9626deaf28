"""The laboratory: measures models through the public interface, like any user."""
