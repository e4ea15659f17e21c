"""Problems of other engines: reads their folders, and runs their code to find shapes."""
