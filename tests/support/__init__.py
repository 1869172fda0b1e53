"""What the tests share: trainables that break on plan, and Ray sessions of their own."""
