"""`gpucomm reproduce`: what papers claim beside what comes out here, and how it was obtained."""
