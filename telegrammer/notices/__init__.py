"""What is worth telling the operator, once; and the worker that carries it (contract 7.4)."""
