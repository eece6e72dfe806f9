"""What a drill leaves: the sealed report, its pages for people, and the signatures of people."""
